//! Log-probabilities: log-softmax of the raw logits, before bias, penalties and filters. Those of answers and of prompts
//! are the same numbers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use protocol::{Token, TokenLogprobs};

/// A logit with a total order: larger first, then the lower id.
#[derive(Clone, Copy, PartialEq)]
struct Entry {
    logit: f32,
    token: Token,
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.logit.total_cmp(&other.logit).then(other.token.cmp(&self.token))
    }
}

/// Of a token, and of the `n_top` most likely ones, best first. Logits that are not numbers have no probability, nor has
/// a token beyond them.
#[must_use]
pub fn of(logits: &[f32], token: Token, n_top: u8) -> TokenLogprobs {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |best, &logit| best.max(logit));
    let sum: f64 = logits.iter().map(|&logit| exp_below(logit, largest)).sum();
    let logprob = |logit: f32| {
        if logit.is_nan() || logit == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        let below = if logit == largest { 0.0 } else { f64::from(logit) - f64::from(largest) };
        (below - sum.ln()) as f32
    };
    let of_token = logits.get(token.0.cast_unsigned() as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let top = top(logits, usize::from(n_top))
        .into_iter()
        .map(|entry| (entry.token, logprob(entry.logit)))
        .collect();
    TokenLogprobs { logprob: logprob(of_token), top }
}

/// `exp(logit - largest)`, also where both are infinite.
fn exp_below(logit: f32, largest: f32) -> f64 {
    if logit.is_nan() || logit == f32::NEG_INFINITY {
        0.0
    } else if logit == largest {
        1.0
    } else {
        (f64::from(logit) - f64::from(largest)).exp()
    }
}

fn top(logits: &[f32], n: usize) -> Vec<Entry> {
    let mut heap: BinaryHeap<Reverse<Entry>> = BinaryHeap::with_capacity(n + 1);
    for (id, &logit) in (0_i32..).zip(logits) {
        let entry = Entry { logit, token: Token(id) };
        let is_number = !logit.is_nan() && logit > f32::NEG_INFINITY;
        if is_number && (heap.len() < n || heap.peek().is_some_and(|least| entry > least.0)) {
            heap.push(Reverse(entry));
            if heap.len() > n {
                heap.pop();
            }
        }
    }
    heap.into_sorted_vec().into_iter().map(|Reverse(entry)| entry).collect()
}
