//! The choice itself: the largest logit, or the largest of logit over temperature plus noise.

use protocol::Token;
use protocol::noise::{GUMBEL_MAX, Noise, bits_to_reach};

use super::candidates::{Candidates, clean};

/// Logits that are looked at together: their maximum decides whether any of them can win.
const BLOCK: usize = 64;

/// Keeps the better of two scored tokens: the higher score, then the lower id.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    token: Token,
}

impl Best {
    /// Below every score; the token that is taken when no logit is a number.
    const NONE: Self = Self { score: f64::NEG_INFINITY, token: Token(0) };

    fn offer(&mut self, token: Token, score: f64) {
        if score > self.score || (score == self.score && token < self.token) {
            *self = Self { score, token };
        }
    }
}

/// The token with the largest logit, the lowest id of equals; token 0 if none is a number.
pub(crate) fn argmax(logits: &[f32]) -> Token {
    let largest = clean(largest(logits));
    let at = logits.iter().position(|&logit| largest.is_some() && clean(logit) == largest);
    token_at(at.unwrap_or(0))
}

/// The token with the largest `logit / temperature + noise`; ties and nothing as in [`argmax`].
pub(super) fn best(candidates: &Candidates, temperature: f32, noise: Noise) -> Token {
    let temperature = f64::from(temperature);
    let mut best = Best::NONE;
    for (token, logit) in candidates.iter() {
        best.offer(token, f64::from(logit) / temperature + noise.gumbel(token));
    }
    best.token
}

/// As [`best`] over all tokens, without computing the noise of those that cannot win: noise is at most
/// [`GUMBEL_MAX`], and what it can be follows from its random bits without logarithms.
pub(super) fn scan(logits: &[f32], temperature: f32, noise: Noise) -> Token {
    let temperature = f64::from(temperature);
    let score = |token: Token, logit: f32| f64::from(logit) / temperature + noise.gumbel(token);
    let mut best = Best::NONE;
    // The most likely token first: its score already rules out nearly all others.
    let likely = argmax(logits);
    if let Some(logit) = logits.get(likely.0.cast_unsigned() as usize).copied().and_then(clean) {
        best.offer(likely, score(likely, logit));
    }
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        let Some(top) = clean(largest(logits)) else { continue };
        let top = f64::from(top) / temperature;
        // What the block's most likely token would need, so no other one can do with less; less what rounding of
        // the scores may add.
        let needed = best.score - top - (best.score.abs() + top.abs()) * (4.0 * f64::EPSILON);
        if needed > GUMBEL_MAX {
            continue;
        }
        let fewest = bits_to_reach(needed);
        for (index, &logit) in logits.iter().enumerate() {
            let token = token_at(block * BLOCK + index);
            if noise.bits(token) >= fewest
                && let Some(logit) = clean(logit)
            {
                best.offer(token, score(token, logit));
            }
        }
    }
    best.token
}

/// Ignores what is not a number. Written so that it becomes vector instructions.
fn largest(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &logit| best.max(logit))
}

fn token_at(index: usize) -> Token {
    Token(i32::try_from(index).expect("a vocabulary has fewer than 2^31 entries"))
}
