//! DRY: llama.cpp's own sampler, shown only the tokens that it can change.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use llama_cpp_sys_2 as sys;
use protocol::{DryParams, Token};
use stage::EngineError;

use super::candidates::{Candidates, Filter};
use super::penalties::Recent;
use super::{Place, refused};
use crate::vocab::Vocab;

/// DRY with its state. It lowers the logits of tokens that would continue a repetition, and those are among the
/// recent ones; so it works on a short list instead of the vocabulary.
#[derive(Clone)]
pub(super) struct Dry {
    filter: Filter,
    recent: Recent,
    candidates: Candidates,
}

impl Dry {
    pub(super) fn accept(&mut self, token: Token) {
        self.recent.push(token);
        self.filter.accept(token);
    }

    pub(super) fn apply(&mut self, logits: &mut [f32]) {
        self.candidates.fill_some(self.recent.tokens(), logits);
        self.candidates.apply(&mut self.filter);
        for (token, logit) in self.candidates.iter() {
            if let Some(place) = logits.get_mut(token.0.cast_unsigned() as usize) {
                *place = logit;
            }
        }
    }
}

#[cfg(test)]
impl Dry {
    /// Without the short cut.
    pub(super) fn apply_to(&mut self, candidates: &mut Candidates) {
        candidates.apply(&mut self.filter);
    }
}

/// Keeps the last DRY sampler made, unused: finding the breakers' tokens walks the whole vocabulary, which takes
/// as long as several tokens on a large one, and requests mostly use the same parameters.
#[derive(Default)]
pub(crate) struct DryCache {
    last: RefCell<Option<(DryParams, Filter)>>,
}

impl DryCache {
    /// A fresh sampler; none if the parameters switch DRY off.
    pub(super) fn sampler(&self, params: &DryParams, place: &Place<'_>) -> Result<Option<Dry>, EngineError> {
        let recent = Recent::new(params.penalty_last_n, place.context);
        if params.multiplier == 0.0 || params.base < 1.0 || recent.limit() == 0 {
            return Ok(None);
        }
        let vocab = place.vocab.ok_or_else(|| refused("DRY needs a model with a tokenizer".to_owned()))?;
        let mut last = self.last.borrow_mut();
        let filter = match &*last {
            Some((of, filter)) if of == params => filter.clone(),
            _ => {
                let made = make(params, vocab, recent.limit())?;
                let copy = made.clone();
                *last = Some((params.clone(), made));
                copy
            }
        };
        Ok(Some(Dry { filter, recent, candidates: Candidates::default() }))
    }
}

fn make(params: &DryParams, vocab: &Vocab, last_n: usize) -> Result<Filter, EngineError> {
    let breakers: Vec<CString> = params
        .sequence_breakers
        .iter()
        .map(|text| CString::new(text.as_str()))
        .collect::<Result<_, _>>()
        .map_err(|_| refused("a DRY sequence breaker contains a NUL character".to_owned()))?;
    let mut pointers: Vec<*const c_char> = breakers.iter().map(|text| text.as_ptr()).collect();
    // SAFETY: the vocabulary is live; `pointers` holds NUL-terminated strings that outlive the call, which copies
    // what it needs.
    let raw = unsafe {
        sys::llama_sampler_init_dry(
            vocab.raw(),
            params.multiplier,
            params.base,
            params.allowed_length.max(0),
            i32::try_from(last_n).unwrap_or(i32::MAX),
            pointers.as_mut_ptr(),
            pointers.len(),
        )
    };
    // SAFETY: a new sampler; DRY changes logits in place.
    Ok(unsafe { Filter::new(raw) })
}
