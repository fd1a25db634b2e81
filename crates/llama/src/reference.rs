//! llama.cpp run the plain way, for comparison: what an engine is measured against.
//!
//! Tokens in, logits out, the most likely token next; none of our batches, taps, slots or samplers.

use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use protocol::Token;

use crate::context::padded;
use crate::model::{Model, ModelOptions};
use crate::{LoadError, backend};

/// What plain llama.cpp did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceRun {
    /// The greedy continuation.
    pub tokens: Vec<Token>,
    /// Time of the whole prompt in one call.
    pub prefill: Duration,
    /// Time of each further token, in order: one call and the search for the largest logit.
    pub steps: Vec<Duration>,
}

/// A whole model with a context of llama.cpp's own making, on the CPU.
pub struct Reference {
    context: Context,
    path: PathBuf,
    positions: usize,
}

impl Reference {
    /// Loads the model, with memory for `positions` positions (rounded up to 256, as an engine's is) and `threads`
    /// threads.
    ///
    /// # Errors
    /// If the model cannot be loaded.
    pub fn load(path: &Path, positions: u32, threads: u32) -> Result<Self, LoadError> {
        let model = Model::load(path, &ModelOptions::default(), &mut |_| ())?;
        let positions = padded(positions);
        let context = Context::new(Arc::new(model), positions, threads, path)?;
        Ok(Self { context, path: path.to_owned(), positions: positions as usize })
    }

    /// Generates `n` tokens greedily after `prompt`, from an empty memory.
    ///
    /// # Errors
    /// If the prompt is empty, has tokens outside the vocabulary or leaves no room, or llama.cpp refuses it.
    pub fn generate(&mut self, prompt: &[Token], n: usize) -> Result<ReferenceRun, LoadError> {
        let n_vocab = self.context.model.n_tokens();
        let is_known = |token: &Token| usize::try_from(token.0).is_ok_and(|id| id < n_vocab);
        if prompt.is_empty() || !prompt.iter().all(is_known) || prompt.len() + n > self.positions {
            let reason = "the prompt is empty, too long or has tokens outside the vocabulary".to_owned();
            return Err(LoadError::Config(reason));
        }
        self.context.clear();
        let mut input: Vec<i32> = prompt.iter().map(|token| token.0).collect();
        let mut done = ReferenceRun { tokens: Vec::new(), prefill: Duration::ZERO, steps: Vec::new() };
        for step in 0..n {
            let start = now();
            let logits = self.context.decode(&mut input, n_vocab, &self.path)?;
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
}

#[allow(clippy::disallowed_methods, reason = "this module measures time")]
fn now() -> Instant {
    Instant::now()
}

/// A context as llama.cpp makes it by default; freed before its model, which it borrows.
struct Context {
    raw: NonNull<sys::llama_context>,
    /// Declared last: the model must outlive the context.
    model: Arc<Model>,
}

// SAFETY: a llama_context has no thread affinity, and it is only used through `&mut self`.
unsafe impl Send for Context {}

impl Context {
    fn new(model: Arc<Model>, positions: u32, threads: u32, path: &Path) -> Result<Self, LoadError> {
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = positions;
        params.n_batch = positions;
        params.n_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        params.n_threads_batch = params.n_threads;
        backend::clear_last_error();
        // SAFETY: the model is live and outlives the context, which owns it.
        let raw = unsafe { sys::llama_init_from_model(model.raw().as_ptr(), params) };
        let raw = NonNull::new(raw).ok_or_else(|| LoadError::Context {
            path: path.to_path_buf(),
            reason: backend::take_last_error(),
        })?;
        Ok(Self { raw, model })
    }

    /// Forgets every position.
    fn clear(&mut self) {
        // SAFETY: the context is live, and its memory belongs to it.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.raw.as_ptr()), false) };
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

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_init_from_model and is freed once.
        unsafe { sys::llama_free(self.raw.as_ptr()) };
    }
}
