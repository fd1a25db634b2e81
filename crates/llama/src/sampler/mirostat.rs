//! Mirostat 1 and 2 (Basu et al. 2021), choosing with the position's noise.

use protocol::Token;
use protocol::noise::Noise;

use super::candidates::Candidates;
use super::pick;

/// Most likely tokens from which version 1 estimates the distribution's exponent: llama.cpp's value.
const ESTIMATED_FROM: usize = 100;

/// Mirostat with its state.
#[derive(Clone)]
pub(super) struct Mirostat {
    params: protocol::Mirostat,
    temperature: f32,
    n_vocab: f64,
}

impl Mirostat {
    pub(super) fn new(params: protocol::Mirostat, temperature: f32, n_vocab: usize) -> Self {
        Self { params, temperature, n_vocab: n_vocab as f64 }
    }

    /// The largest surprise allowed for the next token, in bits.
    pub(super) fn mu(&self) -> f32 {
        self.params.mu
    }

    /// Shortens the candidates, chooses one of them, and learns from its surprise.
    pub(super) fn choose(&mut self, candidates: &mut Candidates, noise: Noise) -> Token {
        let temperature = f64::from(self.temperature);
        match self.params.version {
            1 => {
                let k = self.estimate(candidates, temperature);
                candidates.sort_top(k);
                candidates.keep_first(k);
            }
            _ => self.shorten(candidates, temperature),
        }
        let token = pick::best(candidates, self.temperature, noise);
        let log_sum = candidates.log_sum(temperature);
        if let Some((_, logit)) = candidates.iter().find(|&(id, _)| id == token) {
            let surprise = (log_sum - f64::from(logit) / temperature) / std::f64::consts::LN_2;
            let error = surprise - f64::from(self.params.tau);
            self.params.mu = (f64::from(self.params.mu) - f64::from(self.params.eta) * error) as f32;
        }
        token
    }

    /// Version 2: drops tokens whose surprise is above mu, but not the most likely one.
    fn shorten(&self, candidates: &mut Candidates, temperature: f64) {
        let log_sum = candidates.log_sum(temperature);
        let mu = f64::from(self.params.mu) * std::f64::consts::LN_2;
        let fits = |logit: f32| log_sum - f64::from(logit) / temperature <= mu;
        if fits(candidates.largest()) {
            candidates.retain(|_, logit| fits(logit));
        } else {
            candidates.keep_best();
        }
    }

    /// Version 1: how many tokens to keep, from the exponent of a Zipf law through the most likely ones.
    fn estimate(&self, candidates: &mut Candidates, temperature: f64) -> usize {
        candidates.sort_top(ESTIMATED_FROM);
        let top: Vec<f64> =
            candidates.iter().take(ESTIMATED_FROM).map(|(_, logit)| f64::from(logit) / temperature).collect();
        let (mut products, mut squares) = (0.0, 0.0);
        for (rank, pair) in top.windows(2).enumerate() {
            let rank = rank as f64;
            let t = ((rank + 2.0) / (rank + 1.0)).ln();
            products += t * (pair[0] - pair[1]);
            squares += t * t;
        }
        let s = products / squares;
        let epsilon = s - 1.0;
        let mu = f64::from(self.params.mu);
        let k = ((epsilon * mu.exp2()) / (1.0 - self.n_vocab.powf(-epsilon))).powf(1.0 / s);
        let most = candidates.len().max(1);
        // Not a number for a single candidate or a flat top: then there is no exponent, and the top one is kept.
        if k.is_nan() { 1 } else { (k as usize).clamp(1, most) }
    }
}
