//! The head of one GGUF file: metadata and tensor list, every count, size and offset checked against the file's length.
//!
//! Owns the file format. Does not know shards, architectures, or what a key means beyond `general.alignment`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use crate::value::ARRAY_HEAD;
use crate::{Metadata, TensorType, Value, ValueType};

/// Bytes that metadata and tensor list may take. The largest in use, 260,000 tokens with merges, take about 20 MB.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Metadata keys. Files in use have about 50.
pub const MAX_KEYS: u64 = 1 << 16;
/// Tensors in one file. Models in use have a few thousand, unfused experts some ten thousand.
pub const MAX_TENSORS: u64 = 1 << 20;
/// Arrays within arrays. No key in use nests at all.
pub const MAX_NESTING: u32 = 4;
/// Bytes of a key: the format's own limit.
pub const MAX_KEY_BYTES: u64 = 65_535;
/// Bytes of a tensor's name: llama.cpp refuses longer ones (`GGML_MAX_NAME` counts a final zero).
pub const MAX_NAME_BYTES: u64 = 63;
/// Dimensions of a tensor (`GGML_MAX_DIMS`).
pub const MAX_DIMS: u32 = 4;
/// Alignment of tensor data. 32 is usual; a page or a huge page would do for any reader.
pub const MAX_ALIGNMENT: u64 = 2 << 20;
/// Alignment where the file does not say.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Where the file says.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The first four bytes.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Bytes that are not the head of a usable GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The first bytes are not `GGUF`.
    #[error("it is not a GGUF file; convert the model to GGUF first")]
    Magic,
    /// A file for big-endian machines.
    #[error("it is big endian; convert it to little endian with gguf_convert_endian.py")]
    BigEndian,
    /// A version this reader does not know.
    #[error("GGUF version {0} is not supported; convert the model again to version 3")]
    Version(u32),
    /// The file ends too early.
    #[error("it ends within {what}; copy or download it again")]
    Truncated {
        /// What could not be read whole.
        what: &'static str,
    },
    /// A count or length beyond what any model needs.
    #[error("it claims {n} {what} where at most {limit} are allowed; the file is damaged")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// The claim.
        n: u64,
        /// The limit.
        limit: u64,
    },
    /// A key that is empty or not UTF-8.
    #[error("metadata key {index} is not a name; the file is damaged")]
    Key {
        /// Its place in the file.
        index: u64,
    },
    /// The same key twice.
    #[error("metadata key {0} occurs twice; the file is damaged")]
    DuplicateKey(String),
    /// A value type that the format does not have.
    #[error("metadata key {key} has unknown value type {id}; the file is damaged")]
    ValueType {
        /// Whose value.
        key: String,
        /// The number found.
        id: u32,
    },
    /// An alignment that is not a 32-bit power of two up to [`MAX_ALIGNMENT`].
    #[error("general.alignment is {0}, not a power of two up to 2 MiB; the file is damaged")]
    Alignment(String),
    /// A tensor's name is empty or not UTF-8.
    #[error("tensor {index} has no usable name; the file is damaged")]
    Name {
        /// Its place in the file.
        index: u64,
    },
    /// The same tensor name twice.
    #[error("tensor {0} occurs twice; the file is damaged")]
    DuplicateTensor(String),
    /// A dimension of 0, or a size that does not fit 63 bits.
    #[error("tensor {0} has an impossible shape; the file is damaged")]
    Shape(String),
    /// A type that this llama.cpp cannot compute with.
    #[error(
        "tensor {name} has type {id}, which this build does not know; quantise the model again to a current type"
    )]
    TensorType {
        /// Which tensor.
        name: String,
        /// The number found.
        id: u32,
    },
    /// Tensor data must follow one another, each aligned.
    #[error("tensor {name} starts at {offset} instead of {expected}; the file is damaged")]
    Offset {
        /// Which tensor.
        name: String,
        /// Where it claims to start, from the first tensor.
        offset: u64,
        /// Where the tensor before it ends.
        expected: u64,
    },
    /// The file is shorter than its tensors.
    #[error("it has {has} bytes but its tensors end at {needs}; copy or download it again")]
    DataTruncated {
        /// Bytes needed.
        needs: u64,
        /// The file's length.
        has: u64,
    },
    /// The operating system failed to read.
    #[error("it cannot be read")]
    Io(#[from] std::io::Error),
}

/// A tensor as the head of a file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: String,
    /// Fastest first; at least one.
    pub dims: Vec<u64>,
    pub ty: TensorType,
    /// From the start of the file.
    pub offset: u64,
    pub bytes: u64,
}

/// The head of one file.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub metadata: Metadata,
    pub tensors: Vec<Entry>,
}

/// Reads the head of a file of `file_len` bytes.
pub(crate) fn parse(reader: impl Read, file_len: u64) -> Result<Header, HeaderError> {
    let mut input = Input { reader, pos: 0, file_len };
    if input.array("its first bytes")? != MAGIC {
        return Err(HeaderError::Magic);
    }
    match u32::from_le_bytes(input.array("its version")?) {
        2 | 3 => {}
        version if version & 0xffff == 0 && version != 0 => return Err(HeaderError::BigEndian),
        version => return Err(HeaderError::Version(version)),
    }
    let n_tensors = limited("tensors", input.u64("the tensor count")?, MAX_TENSORS)?;
    let n_keys = limited("metadata keys", input.u64("the metadata count")?, MAX_KEYS)?;
    let metadata = parse_metadata(&mut input, n_keys)?;
    let alignment = alignment(&metadata)?;
    let tensors = parse_tensors(&mut input, n_tensors, alignment)?;
    Ok(Header { metadata, tensors })
}

fn limited(what: &'static str, n: u64, limit: u64) -> Result<u64, HeaderError> {
    if n > limit { Err(HeaderError::Limit { what, n, limit }) } else { Ok(n) }
}

fn parse_metadata(input: &mut Input<impl Read>, n_keys: u64) -> Result<Metadata, HeaderError> {
    let mut metadata = Metadata::default();
    for index in 0..n_keys {
        let len = limited("bytes in a metadata key", input.u64("a metadata key")?, MAX_KEY_BYTES)?;
        let key =
            String::from_utf8(input.bytes(len, "a metadata key")?).map_err(|_| HeaderError::Key { index })?;
        if key.is_empty() {
            return Err(HeaderError::Key { index });
        }
        let id = u32::from_le_bytes(input.array("a value type")?);
        let mut raw = Vec::new();
        let ty = ValueType::from_id(id).ok_or_else(|| HeaderError::ValueType { key: key.clone(), id })?;
        parse_value(input, &key, ty, MAX_NESTING, &mut raw)?;
        if metadata.get(&key).is_some() {
            return Err(HeaderError::DuplicateKey(key));
        }
        metadata.set(key, Value::from_raw(ty, raw));
    }
    Ok(metadata)
}

/// Appends the bytes of one value to `raw`, checked. Arrays may nest `depth` deep.
fn parse_value(
    input: &mut Input<impl Read>,
    key: &str,
    ty: ValueType,
    depth: u32,
    raw: &mut Vec<u8>,
) -> Result<(), HeaderError> {
    match ty {
        ValueType::String => {
            let head = input.array::<8>("a text")?;
            raw.extend_from_slice(&head);
            input.append(u64::from_le_bytes(head), "a text", raw)
        }
        ValueType::Array => {
            let head = input.array::<ARRAY_HEAD>("an array")?;
            let (id, len) = head.split_at(4);
            let id = u32::from_le_bytes(id.try_into().expect("split at four"));
            let len = u64::from_le_bytes(len.try_into().expect("eight are left"));
            let element =
                ValueType::from_id(id).ok_or_else(|| HeaderError::ValueType { key: key.to_owned(), id })?;
            let depth = depth.checked_sub(1).ok_or(HeaderError::Limit {
                what: "levels of arrays",
                n: u64::from(MAX_NESTING) + 1,
                limit: u64::from(MAX_NESTING),
            })?;
            raw.extend_from_slice(&head);
            if let Some(size) = element.size() {
                let bytes =
                    len.checked_mul(size as u64).ok_or(HeaderError::Truncated { what: "an array" })?;
                return input.append(bytes, "an array", raw);
            }
            // Each element takes at least its own length field, so a count that cannot fit ends at the file's end.
            (0..len).try_for_each(|_| parse_value(input, key, element, depth, raw))
        }
        _ => input.append(ty.size().expect("only strings and arrays have none") as u64, "a value", raw),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, HeaderError> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    value
        .as_u64()
        .filter(|&a| value.value_type() == ValueType::U32 && a.is_power_of_two() && a <= MAX_ALIGNMENT)
        .ok_or_else(|| HeaderError::Alignment(value.to_string()))
}

fn parse_tensors(input: &mut Input<impl Read>, n: u64, alignment: u64) -> Result<Vec<Entry>, HeaderError> {
    let mut names = BTreeSet::new();
    let mut tensors = Vec::new();
    let mut end = 0;
    for index in 0..n {
        let entry = parse_tensor(input, index)?;
        let Entry { name, offset, bytes, .. } = &entry;
        if !names.insert(name.clone()) {
            return Err(HeaderError::DuplicateTensor(name.clone()));
        }
        if *offset != end {
            return Err(HeaderError::Offset { name: name.clone(), offset: *offset, expected: end });
        }
        end = bytes
            .checked_add(*offset)
            .and_then(|end| end.checked_next_multiple_of(alignment))
            .ok_or_else(|| HeaderError::Shape(name.clone()))?;
        tensors.push(entry);
    }
    // The header is below 256 MiB and the alignment below 2 MiB, so the sum cannot overflow.
    let start = input.pos.next_multiple_of(alignment);
    for entry in &mut tensors {
        entry.offset =
            entry.offset.checked_add(start).ok_or_else(|| HeaderError::Shape(entry.name.clone()))?;
    }
    // The last tensor need not be padded.
    let needs = tensors.last().map_or(0, |last| last.offset.saturating_add(last.bytes));
    if needs > input.file_len {
        return Err(HeaderError::DataTruncated { needs, has: input.file_len });
    }
    Ok(tensors)
}

fn parse_tensor(input: &mut Input<impl Read>, index: u64) -> Result<Entry, HeaderError> {
    let len = limited("bytes in a tensor's name", input.u64("a tensor's name")?, MAX_NAME_BYTES)?;
    let name =
        String::from_utf8(input.bytes(len, "a tensor's name")?).map_err(|_| HeaderError::Name { index })?;
    if name.is_empty() {
        return Err(HeaderError::Name { index });
    }
    let n_dims = u64::from(u32::from_le_bytes(input.array("a tensor's shape")?));
    limited("dimensions", n_dims, u64::from(MAX_DIMS))?;
    let mut dims = Vec::with_capacity(MAX_DIMS as usize);
    for _ in 0..n_dims {
        dims.push(input.u64("a tensor's shape")?);
    }
    if dims.is_empty() {
        dims.push(1);
    }
    let id = u32::from_le_bytes(input.array("a tensor's type")?);
    let ty = TensorType::from_id(id).ok_or_else(|| HeaderError::TensorType { name: name.clone(), id })?;
    let bytes = tensor_bytes(ty, &dims).ok_or_else(|| HeaderError::Shape(name.clone()))?;
    let offset = input.u64("a tensor's offset")?;
    Ok(Entry { name, dims, ty, offset, bytes })
}

/// Bytes of a tensor; none if a dimension is 0, a row is no whole number of blocks, or the size exceeds 63 bits.
pub(crate) fn tensor_bytes(ty: TensorType, dims: &[u64]) -> Option<u64> {
    let (first, rest) = dims.split_first()?;
    let rows = rest.iter().try_fold(1_u64, |rows, &dim| rows.checked_mul(dim))?;
    let elements = rows.checked_mul(*first)?;
    let bytes = ty.row_bytes(*first)?.checked_mul(rows)?;
    (elements > 0 && elements <= i64::MAX as u64 && bytes <= i64::MAX as u64).then_some(bytes)
}

/// What is left of the file. Nothing is allocated before it is known that the file can hold it.
struct Input<R> {
    reader: R,
    pos: u64,
    file_len: u64,
}

impl<R: Read> Input<R> {
    fn append(&mut self, n: u64, what: &'static str, out: &mut Vec<u8>) -> Result<(), HeaderError> {
        if n > self.file_len.saturating_sub(self.pos) {
            return Err(HeaderError::Truncated { what });
        }
        limited("bytes of metadata", self.pos + n, MAX_HEADER_BYTES)?;
        let start = out.len();
        out.resize(start + usize::try_from(n).expect("below 256 MiB"), 0);
        self.reader.read_exact(&mut out[start..]).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => HeaderError::Truncated { what },
            _ => HeaderError::Io(error),
        })?;
        self.pos += n;
        Ok(())
    }

    fn bytes(&mut self, n: u64, what: &'static str) -> Result<Vec<u8>, HeaderError> {
        let mut out = Vec::new();
        self.append(n, what, &mut out)?;
        Ok(out)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], HeaderError> {
        let bytes = self.bytes(N as u64, what)?;
        Ok(bytes.try_into().expect("as many as asked for"))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, HeaderError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
}

/// Names in order, each found in logarithmic time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index(BTreeMap<String, usize>);

impl Index {
    /// Remembers where `name` is; false if it was known.
    pub(crate) fn insert(&mut self, name: &str, at: usize) -> bool {
        self.0.insert(name.to_owned(), at).is_none()
    }

    pub(crate) fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}

#[cfg(test)]
mod tests;
