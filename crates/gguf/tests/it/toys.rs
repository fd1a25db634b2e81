//! Toy models without llama.cpp: a tensor list that is good enough for everything but computing.

use std::path::{Path, PathBuf};

use gguf::Model;
use gguf::toy::{Toy, ToyTensor, VOCABULARY, WIDTH};

/// Which tensors a model has besides those of its layers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape {
    pub has_output: bool,
    pub drafting: u32,
    pub fused: bool,
}

pub(crate) fn tensors(n_layers: u32, shape: Shape) -> Vec<ToyTensor> {
    let (width, vocabulary) = (u64::from(WIDTH), u64::from(VOCABULARY));
    let mut out = vec![("token_embd.weight".to_owned(), vec![width, vocabulary])];
    out.push(("output_norm.weight".to_owned(), vec![width]));
    out.push(("rope_freqs.weight".to_owned(), vec![16]));
    if shape.has_output {
        out.push(("output.weight".to_owned(), vec![width, vocabulary]));
        out.push(("output.bias".to_owned(), vec![vocabulary]));
    }
    for layer in 0..n_layers + shape.drafting {
        let mut add = |name: &str, dims: &[u64]| out.push((format!("blk.{layer}.{name}"), dims.to_vec()));
        add("attn_norm.weight", &[width]);
        if shape.fused {
            add("attn_qkv.weight", &[width, 256]);
        } else {
            add("attn_q.weight", &[width, 128]);
            add("attn_q.bias", &[128]);
            add("attn_k.weight", &[width, 64]);
            add("attn_v.weight", &[width, 64]);
        }
        add("attn_q_norm.weight", &[32]);
        add("attn_output.weight", &[128, width]);
        add("ffn_down.weight", &[256, width]);
        if layer >= n_layers {
            add("nextn.eh_proj.weight", &[2 * width, width]);
            add("nextn.enorm.weight", &[width]);
            add("nextn.hnorm.weight", &[width]);
        }
    }
    out.into_iter().map(|(name, dims)| ToyTensor { name, dims }).collect()
}

pub(crate) fn write(folder: &Path, toy: Toy, n_layers: u32, shape: Shape) -> PathBuf {
    let path = folder.join(format!("{}-{n_layers}.gguf", toy.spec().name));
    toy.layers(n_layers).write(&tensors(n_layers, shape), &path).unwrap();
    path
}

pub(crate) fn open(folder: &Path, name: &str, n_layers: u32, shape: Shape) -> Model {
    Model::open(&write(folder, Toy::named(name).unwrap(), n_layers, shape)).unwrap()
}

/// Writes a toy with other metadata, by rewriting the one it is made from.
pub(crate) fn write_with(path: &Path, toy: Toy, n_layers: u32, change: impl FnOnce(&mut gguf::Metadata)) {
    toy.layers(n_layers).write_changed(&tensors(n_layers, Shape::default()), path, change).unwrap();
}
