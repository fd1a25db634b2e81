//! llama.cpp run the plain way, for comparison: what an engine is measured against.
//!
//! Tokens in, logits out, the most likely token next; none of our batches, taps, slots or samplers.

use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use protocol::Token;

use crate::model::{Model, ModelOptions};
use crate::{LoadError, backend};

/// What plain llama.cpp did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The greedy continuation.
    pub tokens: Vec<Token>,
    /// Time of the whole prompt in one call.
    pub prefill: Duration,
    /// Time of each further token, in order: one call and the search for the largest logit.
    pub steps: Vec<Duration>,
}

/// Generates `n` tokens greedily on the CPU after `prompt`, with `threads` threads and llama.cpp's default context.
///
/// # Errors
/// If the model cannot be loaded or llama.cpp refuses the prompt.
pub fn reference(path: &Path, prompt: &[Token], n: usize, threads: u32) -> Result<Reference, LoadError> {
    let model = Model::load(path, &ModelOptions::default(), &mut |_| ())?;
    let n_vocab = model.n_tokens();
    if prompt.is_empty()
        || prompt.iter().any(|token| usize::try_from(token.0).map_or(true, |id| id >= n_vocab))
    {
        return Err(LoadError::Config("the prompt is empty or has tokens outside the vocabulary".to_owned()));
    }
    let mut context = Context::new(&model, prompt.len() + n, threads, path)?;
    let mut input: Vec<i32> = prompt.iter().map(|token| token.0).collect();
    let mut done = Reference { tokens: Vec::new(), prefill: Duration::ZERO, steps: Vec::new() };
    for step in 0..n {
        let start = now();
        let logits = context.decode(&mut input, n_vocab, path)?;
        let best = crate::sampler::argmax(logits);
        match step {
            0 => done.prefill = start.elapsed(),
            _ => done.steps.push(start.elapsed()),
        }
        done.tokens.push(best);
        input = vec![best.0];
    }
    Ok(done)
}

#[allow(clippy::disallowed_methods, reason = "this module measures time")]
fn now() -> Instant {
    Instant::now()
}

/// A context as llama.cpp makes it by default; freed before its model, which it borrows.
struct Context<'a> {
    raw: NonNull<sys::llama_context>,
    _model: &'a Model,
}

impl<'a> Context<'a> {
    fn new(model: &'a Model, positions: usize, threads: u32, path: &Path) -> Result<Self, LoadError> {
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_context_default_params() };
        let positions = u32::try_from(positions).unwrap_or(u32::MAX);
        params.n_ctx = positions;
        params.n_batch = positions;
        params.n_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        params.n_threads_batch = params.n_threads;
        backend::clear_last_error();
        // SAFETY: the model is live and outlives the context by the lifetime.
        let raw = unsafe { sys::llama_init_from_model(model.raw().as_ptr(), params) };
        let raw = NonNull::new(raw).ok_or_else(|| LoadError::Context {
            path: path.to_path_buf(),
            reason: backend::take_last_error(),
        })?;
        Ok(Self { raw, _model: model })
    }

    /// Computes the tokens at the next positions; logits of the last one.
    fn decode(&mut self, tokens: &mut [i32], n_vocab: usize, path: &Path) -> Result<&[f32], LoadError> {
        let refused = || LoadError::Context { path: path.to_path_buf(), reason: backend::take_last_error() };
        let n = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
        // SAFETY: only stores the pointer and the count in a struct.
        let batch = unsafe { sys::llama_batch_get_one(tokens.as_mut_ptr(), n) };
        // SAFETY: the context is live; `batch` points to `n` valid tokens that outlive the call.
        if unsafe { sys::llama_decode(self.raw.as_ptr(), batch) } != 0 {
            return Err(refused());
        }
        // SAFETY: the context is live; -1 is the last output.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), -1) };
        if logits.is_null() {
            return Err(refused());
        }
        // SAFETY: the answer points to `n_vocab` floats that stay unchanged until the next decode, which needs
        // `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(logits, n_vocab) })
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_init_from_model and is freed once.
        unsafe { sys::llama_free(self.raw.as_ptr()) };
    }
}
