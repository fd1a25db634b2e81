//! Tiny random-weight models of every supported architecture, for tests.
//!
//! Owns the metadata (a table, written by hand), the weights (a function of seed and tensor name) and ways to spoil or
//! re-shard a model. Does not own the list of tensors: llama.cpp knows best which ones an architecture has, so a caller
//! asks it with [`Toy::write_meta`] and passes the answer to [`Toy::write`].

mod edit;
mod nextn;
mod quantise;
mod random;
mod specs;

use std::path::Path;

pub use edit::{EditError, fewer_blocks, repeat_layer, shard, swap_layers, without};

use crate::header::tensor_bytes;
use crate::write::{NewTensor, write_file};
use crate::{Metadata, TensorType, Value, WriteError};
use random::Random;

/// Values in a hidden row.
pub const WIDTH: u32 = 128;
/// Vocabulary entries; there is no tokenizer.
pub const VOCABULARY: u32 = 512;
/// Positions that the metadata claims.
const CONTEXT: u32 = 4096;

/// The metadata of one variant of an architecture.
#[derive(Clone, Copy, Debug)]
pub struct ToySpec {
    /// Unique: the architecture's name, with a suffix for variants.
    pub name: &'static str,
    /// `general.architecture`.
    pub arch: &'static str,
    /// Layers unless [`Toy::layers`] says otherwise, without those that only draft.
    pub n_layers: u32,
    /// Groups of keys under the architecture's prefix, on top of those that all have.
    keys: &'static [&'static [(&'static str, Key)]],
    /// Parts of names of tensors that llama.cpp offers but this variant does not have.
    skip: &'static [&'static str],
}

impl ToySpec {
    /// Blocks that draft (NextN), on top of its layers.
    #[must_use]
    pub fn n_nextn(&self) -> u32 {
        match self.keys().find(|(key, _)| *key == "nextn_predict_layers") {
            Some((_, Key::U(n))) => *n,
            _ => 0,
        }
    }

    fn keys(&self) -> impl Iterator<Item = &'static (&'static str, Key)> + use<> {
        self.keys.iter().flat_map(|group| group.iter())
    }
}

#[derive(Clone, Copy, Debug)]
enum Key {
    U(u32),
    F(f32),
    B(bool),
    Us(&'static [u32]),
    Fs(&'static [f32]),
    Bs(&'static [bool]),
}

impl Key {
    /// An array with an entry for each of the variant's own layers goes round for the layers that there are; those of its
    /// blocks that draft stay behind them.
    fn fit(self, spec: &ToySpec, n_layers: u32) -> Value {
        match self {
            Self::U(value) => value.into(),
            Self::F(value) => value.into(),
            Self::B(value) => value.into(),
            Self::Us(values) => Value::u32s(&cycled(values, spec, n_layers)),
            Self::Fs(values) => Value::f32s(&cycled(values, spec, n_layers)),
            Self::Bs(values) => Value::bools(&cycled(values, spec, n_layers)),
        }
    }
}

fn cycled<T: Copy>(values: &[T], spec: &ToySpec, n_layers: u32) -> Vec<T> {
    let own = spec.n_layers as usize;
    if values.len() != own && values.len() != own + spec.n_nextn() as usize {
        return values.to_vec();
    }
    let (layers, blocks) = values.split_at(own);
    layers.iter().cycle().take(n_layers as usize).chain(blocks).copied().collect()
}

/// All variants.
#[must_use]
pub fn specs() -> &'static [ToySpec] {
    &specs::SPECS
}

/// A tensor that a model wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToyTensor {
    /// As llama.cpp names it.
    pub name: String,
    /// Elements per dimension, fastest first; ones at the end do not count.
    pub dims: Vec<u64>,
}

/// How the matrices of the layers are stored. Everything else, the embeddings too, is 32-bit floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// 32-bit floats.
    #[default]
    F32,
    /// 8-bit blocks.
    Q8_0,
    /// 4-bit blocks.
    Q4_0,
}

/// A toy model to be written.
#[derive(Clone, Copy, Debug)]
pub struct Toy {
    spec: &'static ToySpec,
    n_layers: u32,
    weights: Weights,
    seed: u64,
}

impl Toy {
    /// The variant of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        specs().iter().find(|spec| spec.name == name).map(Self::new)
    }

    /// A model of this variant with its own layer count, 32-bit floats and seed 0.
    #[must_use]
    pub const fn new(spec: &'static ToySpec) -> Self {
        Self { spec, n_layers: spec.n_layers, weights: Weights::F32, seed: 0 }
    }

    /// With another number of layers.
    #[must_use]
    pub const fn layers(self, n_layers: u32) -> Self {
        Self { n_layers, ..self }
    }

    /// With layer matrices stored in another way.
    #[must_use]
    pub const fn weights(self, weights: Weights) -> Self {
        Self { weights, ..self }
    }

    /// With other weights.
    #[must_use]
    pub const fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Its variant.
    #[must_use]
    pub const fn spec(&self) -> &'static ToySpec {
        self.spec
    }

    /// Its metadata.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        let mut out = Metadata::default();
        let arch = self.spec.arch;
        out.set("general.architecture", Value::string(arch));
        out.set("tokenizer.ggml.model", Value::string("no_vocab"));
        let common = [
            ("context_length", Key::U(CONTEXT)),
            ("embedding_length", Key::U(WIDTH)),
            ("block_count", Key::U(self.n_layers + self.spec.n_nextn())),
            ("feed_forward_length", Key::U(256)),
            ("attention.head_count", Key::U(4)),
            ("attention.head_count_kv", Key::U(2)),
            ("attention.layer_norm_rms_epsilon", Key::F(1e-6)),
            ("attention.layer_norm_epsilon", Key::F(1e-5)),
            ("vocab_size", Key::U(VOCABULARY)),
        ];
        for (key, value) in common.into_iter().chain(self.spec.keys().copied()) {
            // The only ones without a prefix.
            let bare = key.starts_with("xielu.");
            let key = if bare { key.to_owned() } else { format!("{arch}.{key}") };
            out.set(key, value.fit(self.spec, self.n_layers));
        }
        out
    }

    /// Writes the metadata alone, for asking llama.cpp which tensors it wants.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_meta(&self, path: &Path) -> Result<(), WriteError> {
        self.write(&[], path)
    }

    /// Writes the model with those of `tensors` that the variant has.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// If a tensor has no elements.
    pub fn write(&self, tensors: &[ToyTensor], path: &Path) -> Result<(), WriteError> {
        self.write_changed(tensors, path, |_| {})
    }

    /// The same with other metadata.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// If a tensor has no elements.
    pub fn write_changed(
        &self,
        tensors: &[ToyTensor],
        path: &Path,
        change: impl FnOnce(&mut Metadata),
    ) -> Result<(), WriteError> {
        let mut metadata = self.metadata();
        change(&mut metadata);
        let fused = (self.spec.arch == "mimo2" && self.spec.n_nextn() > 0).then(|| nextn::fused(tensors));
        let tensors = fused.as_deref().unwrap_or(tensors);
        let new: Vec<_> =
            tensors.iter().filter(|tensor| self.has(&tensor.name)).map(|t| self.new_tensor(t)).collect();
        let fill = |at: usize, out: &mut crate::write::Output<'_>| {
            let tensor: &NewTensor = &new[at];
            let values = self.values(tensor);
            let bytes = match tensor.ty {
                TensorType::Q8_0 => quantise::q8_0(&values),
                TensorType::Q4_0 => quantise::q4_0(&values),
                _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            out.data(&bytes)
        };
        write_file(path, &metadata, &new, fill, &mut |_, _| {})
            .map(drop)
            .map_err(|source| WriteError::Io { path: path.to_owned(), source })
    }

    fn has(&self, name: &str) -> bool {
        // llama.cpp offers a scale beside every matrix, for one storage type only; one architecture has another.
        let of_matrix = !name.ends_with("ffn_gate_inp.scale");
        let scale = of_matrix && name.ends_with(".scale") || name.ends_with(".input_scale");
        !scale && !self.spec.skip.iter().any(|part| name.contains(part))
    }

    fn new_tensor(&self, tensor: &ToyTensor) -> NewTensor {
        let mut dims = tensor.dims.clone();
        while dims.len() > 1 && dims.last() == Some(&1) {
            dims.pop();
        }
        let ty = match self.weights {
            Weights::Q8_0 if quantisable(&tensor.name, &dims) => TensorType::Q8_0,
            Weights::Q4_0 if quantisable(&tensor.name, &dims) => TensorType::Q4_0,
            _ => TensorType::F32,
        };
        let bytes = tensor_bytes(ty, &dims).expect("llama.cpp asks for no empty tensor");
        NewTensor { name: tensor.name.clone(), dims, ty, bytes }
    }

    fn values(&self, tensor: &NewTensor) -> Vec<f32> {
        if self.spec.n_nextn() > 0
            && let Some(values) = nextn::values(tensor, |name| self.normals(name))
        {
            return values;
        }
        let (offset, scale) = distribution(&tensor.name, &tensor.dims);
        let n: u64 = tensor.dims.iter().product();
        self.normals(&tensor.name).take(n as usize).map(|value| offset + scale * value).collect()
    }

    /// Numbers of mean 0 and deviation 1 that belong to a tensor.
    fn normals(&self, tensor: &str) -> impl Iterator<Item = f32> + use<> {
        let mut random = Random::new(self.seed, self.spec.name, tensor);
        std::iter::repeat_with(move || random.normal())
    }
}

/// Matrices of a layer, but not the small ones that llama.cpp wants as floats.
fn quantisable(name: &str, dims: &[u64]) -> bool {
    const FLOATS: [&str; 7] = ["gate_inp", "norm", "bias", "_b.", "conv", "ssm_a", "ssm_d"];
    name.starts_with("blk.")
        && dims.len() >= 2
        && TensorType::Q8_0.row_bytes(dims[0]).is_some()
        && !FLOATS.iter().any(|part| name.contains(part))
}

/// Mean and deviation of a tensor's elements: rows keep their size through a layer, attention is peaked enough for
/// positions to matter, and logits are some units apart, so that an error anywhere shows.
fn distribution(name: &str, dims: &[u64]) -> (f32, f32) {
    let inverse_root = 1.0 / (dims[0] as f32).sqrt();
    match name {
        "token_embd.weight" => (0.0, 1.0),
        "output.weight" => (0.0, 2.0 * inverse_root),
        // Factors on rotation frequencies must stay positive: the deviation reaches 3.5 at most.
        _ if name.starts_with("rope_f") => (2.0, 0.25),
        // Factors of a decay must stay negative.
        _ if name.ends_with("ssm_a") => (-1.0, 0.25),
        _ if name.contains("conv") || name.ends_with("ssm_d") => (0.0, 0.5),
        _ if name.contains("norm") && name.ends_with("weight") => (1.0, 0.2),
        // Factors on all of the residual stream and on what chooses experts, and divisors of activations.
        _ if name.contains("layer_output_scale") || name.ends_with(".scale") || name.ends_with(".scales") => {
            (1.0, 0.2)
        }
        _ if name.contains("position_embd") => (0.0, 0.5),
        _ if name.contains("sinks") => (0.0, 1.0),
        _ if name.ends_with("bias") => (0.0, 0.1),
        _ if dims.len() == 1 => (0.0, 0.3),
        _ if ["attn_q.", "attn_k.", "attn_q_", "attn_k_", "qkv"].iter().any(|part| name.contains(part)) => {
            (0.0, 2.0 * inverse_root)
        }
        _ => (0.0, inverse_root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_architecture_has_a_toy() {
        for arch in crate::arch::all() {
            assert!(specs().iter().any(|spec| spec.arch == arch.name), "{}", arch.name);
        }
        for (at, spec) in specs().iter().enumerate() {
            assert!(crate::arch::find(spec.arch).is_ok(), "{}", spec.name);
            assert!(specs()[..at].iter().all(|other| other.name != spec.name), "{}", spec.name);
        }
    }

    #[test]
    fn drafting_blocks_come_on_top_of_the_layers() {
        let toy = Toy::named("glm4moe-nextn").unwrap();
        assert_eq!(toy.spec().n_nextn(), 1);
        assert_eq!(toy.layers(5).metadata().get_u32("glm4moe.block_count"), Some(6));
    }
}
