//! The tokens that may still be chosen, in the form that llama.cpp's filters work on.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;
use protocol::Token;

use super::LARGEST;

/// Tokens with their logits. Holds no logit that is not a finite number.
#[derive(Clone, Default)]
pub(super) struct Candidates {
    data: Vec<sys::llama_token_data>,
    /// Whether `data` is in descending order of logits.
    sorted: bool,
}

/// A logit that can be computed with; none if the token cannot be chosen.
pub(super) fn clean(logit: f32) -> Option<f32> {
    (logit > f32::NEG_INFINITY).then(|| logit.clamp(-LARGEST, LARGEST))
}

impl Candidates {
    /// All tokens that can be chosen.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.data.clear();
        self.sorted = false;
        self.data.extend((0_i32..).zip(logits).filter_map(|(id, &logit)| {
            let logit = clean(logit)?;
            Some(sys::llama_token_data { id, logit, p: 0.0 })
        }));
    }

    /// These tokens only.
    pub(super) fn fill_some(&mut self, tokens: impl Iterator<Item = Token>, logits: &[f32]) {
        self.data.clear();
        self.sorted = false;
        self.data.extend(tokens.filter_map(|token| {
            let logit = clean(*logits.get(token.0.cast_unsigned() as usize)?)?;
            Some(sys::llama_token_data { id: token.0, logit, p: 0.0 })
        }));
    }

    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, f32)> {
        self.data.iter().map(|entry| (Token(entry.id), entry.logit))
    }

    /// Keeps those for which `keep` holds.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Token, f32) -> bool) {
        self.data.retain(|entry| keep(Token(entry.id), entry.logit));
    }

    /// Puts the `n` most likely first, in order; the rest stays behind in any order.
    pub(super) fn sort_top(&mut self, n: usize) {
        let order = |a: &sys::llama_token_data, b: &sys::llama_token_data| {
            b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
        };
        let n = n.min(self.data.len());
        if n < self.data.len() && n > 0 {
            self.data.select_nth_unstable_by(n - 1, order);
        }
        self.data[..n].sort_unstable_by(order);
    }

    /// Keeps the first `n`.
    pub(super) fn keep_first(&mut self, n: usize) {
        self.data.truncate(n);
    }

    /// Keeps only the most likely (the lowest id among equals).
    pub(super) fn keep_best(&mut self) {
        let best = self.data.iter().copied().reduce(|a, b| if b.logit > a.logit { b } else { a });
        self.data.clear();
        self.data.extend(best);
    }

    /// The largest logit.
    pub(super) fn largest(&self) -> f32 {
        self.data.iter().fold(f32::NEG_INFINITY, |best, entry| best.max(entry.logit))
    }

    /// `ln` of the sum of `exp(logit / temperature)`.
    pub(super) fn log_sum(&self, temperature: f64) -> f64 {
        let largest = f64::from(self.largest());
        let sum: f64 =
            self.data.iter().map(|entry| ((f64::from(entry.logit) - largest) / temperature).exp()).sum();
        largest / temperature + sum.ln()
    }

    /// Lets one of llama.cpp's samplers drop, reorder or change candidates.
    pub(super) fn apply(&mut self, sampler: &mut Filter) {
        if self.data.is_empty() {
            return;
        }
        let mut array = sys::llama_token_data_array {
            data: self.data.as_mut_ptr(),
            size: self.data.len(),
            selected: -1,
            sorted: self.sorted,
        };
        // SAFETY: llama_sampler_apply works on `size` entries at `data`, which `self.data` holds; the filters used
        // here (see `Filter`) change entries in place and only ever lower `size`.
        unsafe { sys::llama_sampler_apply(sampler.0.as_ptr(), &raw mut array) };
        assert!(
            array.data == self.data.as_mut_ptr() && array.size <= self.data.len(),
            "a filter moved the array"
        );
        self.sorted = array.sorted;
        self.data.truncate(array.size);
        self.data.retain(|entry| entry.logit > f32::NEG_INFINITY);
    }
}

/// Owns one of llama.cpp's samplers that filter in place: no generator of its own, no choice of a token.
pub(super) struct Filter(NonNull<sys::llama_sampler>);

// SAFETY: a llama_sampler has no thread affinity and is only used through `&mut self`.
unsafe impl Send for Filter {}

impl Filter {
    /// # Safety
    /// `raw` is null or a sampler that nothing else owns and that filters in place.
    pub(super) unsafe fn new(raw: *mut sys::llama_sampler) -> Self {
        Self(NonNull::new(raw).expect("llama.cpp's sampler constructors never return null"))
    }

    pub(super) fn accept(&mut self, token: Token) {
        // SAFETY: the sampler is live.
        unsafe { sys::llama_sampler_accept(self.0.as_ptr(), token.0) };
    }
}

impl Clone for Filter {
    /// A copy with the same state.
    fn clone(&self) -> Self {
        // SAFETY: the sampler is live; all samplers made here support cloning.
        let raw = unsafe { sys::llama_sampler_clone(self.0.as_ptr()) };
        // SAFETY: the clone is a new object of the same kind.
        unsafe { Self::new(raw) }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: the sampler is owned and freed once.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}
