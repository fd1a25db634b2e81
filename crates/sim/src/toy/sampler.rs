//! The toy's sampler: the argmax, or a draw with the noise of the position. With a frequency penalty it also depends
//! on every token it has recorded, so that a sample taken once too often, or one prompt token missed, shows.

use protocol::noise::Noise;
use protocol::{Open, Position, Token, TokenLogprobs};
use stage::{EngineError, Sampled, Sampler};

use crate::random::mix2;

#[derive(Clone)]
pub(crate) struct ToySampler {
    seed: u64,
    choice: u32,
    temperature: f32,
    remembers: bool,
    n_logprobs: Option<u8>,
    recorded: u64,
}

impl ToySampler {
    pub(crate) fn new(open: &Open) -> Self {
        Self {
            seed: open.seed,
            choice: open.choice,
            temperature: open.sampler.temperature,
            remembers: open.sampler.frequency_penalty != 0.0,
            n_logprobs: open.top_logprobs,
            recorded: 0,
        }
    }

    fn score(&self, noise: Noise, token: Token, logit: f32) -> f64 {
        let id = u64::from(token.0.cast_unsigned());
        let penalty =
            if self.remembers { (mix2(self.recorded, id) >> 40) as f64 / f64::from(1 << 22) } else { 0.0 };
        let score = f64::from(logit) - penalty;
        if self.temperature > 0.0 { score / f64::from(self.temperature) + noise.gumbel(token) } else { score }
    }
}

impl Sampler for ToySampler {
    fn prompt(&mut self, token: Token) {
        self.recorded = mix2(self.recorded, u64::from(token.0.cast_unsigned()));
    }

    fn sample(&mut self, position: Position, logits: &[f32]) -> Result<Sampled, EngineError> {
        let noise = Noise::new(self.seed, self.choice, position);
        let scored =
            (0..).map(Token).zip(logits).map(|(token, &logit)| (token, self.score(noise, token, logit)));
        let (token, _) = scored
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
            .expect("a vocabulary has at least one token");
        self.prompt(token);
        let logprobs = self
            .n_logprobs
            .map(|n| TokenLogprobs { logprob: -1.0, top: vec![(token, -1.0); usize::from(n)] });
        Ok(Sampled { token, logprobs, mu: None, grammar_ended: false })
    }

    fn drafting(&self) -> Option<Box<dyn Sampler>> {
        Some(Box::new(self.clone()))
    }
}
