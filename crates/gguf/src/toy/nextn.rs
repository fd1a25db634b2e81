//! Weights of toys that draft for themselves: what follows a token is mostly a function of it, so that the layers and the
//! block that drafts agree on some tokens and not on others.

use super::{ToyTensor, VOCABULARY, WIDTH};
use crate::write::NewTensor;

/// What the layers add to a row, against what they add in other toys: a row keeps most of its token.
const NOISE: f32 = 0.6;

/// The token that follows another one unless the layers disturb it.
const fn next(token: usize) -> usize {
    (5 * token + 3) % VOCABULARY as usize
}

/// The values of a tensor that is special in such a toy; `normals` gives those of any tensor.
pub(super) fn values<I>(tensor: &NewTensor, normals: impl Fn(&str) -> I) -> Option<Vec<f32>>
where
    I: Iterator<Item = f32>,
{
    let inverse_root = 1.0 / (tensor.dims[0] as f32).sqrt();
    let n = tensor.dims.iter().product::<u64>() as usize;
    let noise = |scale: f32| normals(&tensor.name).take(n).map(|value| scale * value).collect();
    let name = tensor.name.rsplit_once("blk.").map_or(tensor.name.as_str(), |(_, rest)| rest);
    match name.split_once('.').map_or(name, |(_, rest)| rest) {
        _ if name == "output.weight" => {
            Some(output(&normals("token_embd.weight").take(n).collect::<Vec<_>>()))
        }
        "nextn.eh_proj.weight" => Some(projection(&normals(&tensor.name).take(n).collect::<Vec<_>>())),
        "attn_output.weight" | "ssm_out.weight" => Some(noise(2.0 * NOISE * inverse_root)),
        rest if rest.starts_with("ffn_down") => Some(noise(NOISE * inverse_root)),
        _ => None,
    }
}

/// With query, key and value of every layer in one matrix, which llama.cpp offers to nobody but wants of some blocks.
pub(super) fn fused(tensors: &[ToyTensor]) -> Vec<ToyTensor> {
    let n_rows = |layer: &str, part: &str| {
        let name = format!("{layer}.attn_{part}.weight");
        tensors.iter().find(|tensor| tensor.name == name).map_or(0, |tensor| tensor.dims[1])
    };
    let fuse = |tensor: &ToyTensor| match tensor.name.split_once(".attn_") {
        Some((layer, "q.weight")) => {
            let dims = vec![tensor.dims[0], ["q", "k", "v"].map(|part| n_rows(layer, part)).iter().sum()];
            Some(ToyTensor { name: format!("{layer}.attn_qkv.weight"), dims })
        }
        Some((_, "k.weight" | "v.weight")) => None,
        _ => Some(tensor.clone()),
    };
    tensors.iter().filter_map(fuse).collect()
}

/// The embeddings, each in the row of the token that follows.
fn output(embeddings: &[f32]) -> Vec<f32> {
    let width = WIDTH as usize;
    let scale = 2.0 / (width as f32).sqrt();
    let mut out = vec![0.0; embeddings.len()];
    for (token, row) in embeddings.chunks_exact(width).enumerate() {
        let at = next(token) * width;
        out[at..at + width].iter_mut().zip(row).for_each(|(out, value)| *out = scale * value);
    }
    out
}

/// The token's own row, and half of the row that it follows, with noise.
fn projection(noise: &[f32]) -> Vec<f32> {
    let width = WIDTH as usize;
    let scale = 0.2 / (width as f32).sqrt();
    let value = |(at, noise): (usize, &f32)| {
        let (row, column) = (at / (2 * width), at % (2 * width));
        match column.checked_sub(width) {
            None => f32::from(u8::from(column == row)),
            Some(column) => scale * noise + 0.5 * f32::from(u8::from(column == row)),
        }
    };
    noise.iter().enumerate().map(value).collect()
}
