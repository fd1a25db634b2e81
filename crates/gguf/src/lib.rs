//! Models as files: reading GGUF, sharing layers out, writing slices that stock llama.cpp loads, and toy models.
//!
//! Owns the file format, the shard rules, what each architecture needs when its layers are cut (as data), the identity
//! of a model, the manifest of a split, and tiny random-weight models for tests.
//! Does not know llama.cpp, memory maps, `unsafe`, stages or links.
#![forbid(unsafe_code)]

pub mod arch;
mod digest;
pub mod header;
mod identity;
mod layout;
mod manifest;
mod metadata;
mod model;
mod plan;
mod slice;
mod source;
mod tensor_type;
pub mod toy;
mod value;
mod write;

pub use digest::{DigestError, FileDigest, Identity};
pub use header::HeaderError;
pub use identity::{IdentityCache, IdentityError, identity};
pub use manifest::{
    FileRecord, FolderError, MANIFEST_FILE, Manifest, SliceFolder, SliceRecord, slice_name, verify_slice,
};
pub use metadata::Metadata;
pub use model::{Model, OpenError, Tensor};
pub use plan::{Plan, PlannedStage};
pub use slice::{
    SLICE_VERSION, SliceError, SliceInfo, SliceNextN, WriteError, Written, WrittenSlice, embeddings_path,
    nextn_path, write_shallow, write_slice, write_vocab,
};
pub use source::{CutError, MAX_LAYERS, NoDrafts, Source};
pub use tensor_type::TensorType;
pub use value::{Array, Value, ValueType};
pub use write::Progress;
