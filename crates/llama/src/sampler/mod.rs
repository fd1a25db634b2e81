//! Chooses one sequence's tokens: llama.cpp's filters in llama-server's order, with noise keyed by position.
//!
//! The order: logit bias, grammar, penalties, DRY, then top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature; or
//! mirostat in place of everything between DRY and the choice. The choice is the largest `logit / T + Gumbel noise`
//! (see [`protocol::noise`]), ties to the lowest id, so that the token at a position does not depend on how its logits
//! came to be computed. At temperature 0 it is the largest logit after penalties and DRY, whatever the filters say.
//!
//! Logits that are not numbers or minus infinity are never chosen while there is another; infinite ones count as
//! [`LARGEST`].

mod candidates;
mod dry;
mod filters;
mod mirostat;
mod penalties;
mod pick;
#[cfg(test)]
mod tests;

use grammar::{Constraint, GrammarError};
use protocol::noise::Noise;
use protocol::{Open, Position, SamplerParams, Token};
use stage::{EngineError, Sampled, Sampler, logprobs};

use crate::constrain::GrammarCache;
use crate::vocab::Vocab;
use candidates::Candidates;
use dry::Dry;
pub(crate) use dry::DryCache;
use filters::Filters;
use mirostat::Mirostat;
use penalties::Penalties;
pub(crate) use pick::argmax;

/// Logits are clamped to this size: far above any real one, and still safe for llama.cpp's bucket sort, which
/// converts multiples of them to `int`.
const LARGEST: f32 = 1e8;

/// One sequence's sampler.
pub(crate) struct LlamaSampler {
    seed: u64,
    choice: u32,
    temperature: f32,
    bias: Vec<(Token, f32)>,
    constraint: Option<Constraint>,
    penalties: Option<Penalties>,
    dry: Option<Dry>,
    rule: Rule,
    top_logprobs: Option<u8>,
    /// Scratch: the logits with bias, grammar, penalties and DRY.
    changed: Vec<f32>,
    candidates: Candidates,
}

/// The model that the tokens are for.
pub(crate) struct Place<'a> {
    pub(crate) n_vocab: usize,
    /// Positions per sequence.
    pub(crate) context: u32,
    /// None if the model has no tokenizer.
    pub(crate) vocab: Option<&'a Vocab>,
}

/// How a token is chosen from the changed logits.
#[derive(Clone)]
enum Rule {
    /// Temperature 0.
    Argmax,
    /// Nothing between penalties and the choice: the fast scan.
    Plain,
    Filtered(Filters),
    Mirostat(Mirostat),
}

impl LlamaSampler {
    /// # Errors
    /// If a parameter is out of range, a biased token is not in the vocabulary, or the grammar cannot be followed.
    pub(crate) fn new(
        open: &Open,
        place: &Place<'_>,
        dry: &DryCache,
        grammars: &GrammarCache,
    ) -> Result<Self, EngineError> {
        let params = &open.sampler;
        check(params, place.n_vocab)?;
        if params.grammar.is_some() && open.ignore_eos {
            return Err(refused(
                "ignore_eos has no meaning beside a grammar, whose end is the answer's".into(),
            ));
        }
        let constraint = params.grammar.as_ref().map(|grammar| grammars.start(grammar, place)).transpose()?;
        let filters = Filters::new(params);
        let rule = match &params.mirostat {
            _ if params.temperature <= 0.0 => Rule::Argmax,
            Some(mirostat) => Rule::Mirostat(Mirostat::new(*mirostat, params.temperature, place.n_vocab)),
            None if filters.is_empty() => Rule::Plain,
            None => Rule::Filtered(filters),
        };
        Ok(Self {
            seed: open.seed,
            choice: open.choice,
            temperature: params.temperature,
            bias: params.logit_bias.clone(),
            constraint,
            penalties: Penalties::new(params, place.context),
            dry: dry.sampler(&params.dry, place)?,
            rule,
            top_logprobs: open.top_logprobs,
            changed: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    fn record(&mut self, token: Token) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
        if let Some(dry) = &mut self.dry {
            dry.accept(token);
        }
    }

    /// Copies the logits and applies bias, grammar, penalties and DRY. False if there is nothing to apply.
    fn change(&mut self, logits: &[f32]) -> Result<bool, EngineError> {
        if self.bias.is_empty() && self.constraint.is_none() && self.penalties.is_none() && self.dry.is_none()
        {
            return Ok(false);
        }
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        for &(token, bias) in &self.bias {
            if let Some(logit) = self.changed.get_mut(token.0.cast_unsigned() as usize) {
                *logit += bias;
            }
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(&mut self.changed).map_err(|error| refused(error.to_string()))?;
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(&mut self.changed);
        }
        if let Some(dry) = &mut self.dry {
            dry.apply(&mut self.changed);
        }
        Ok(true)
    }

    /// Moves on in the grammar; whether it ends with this token.
    fn follow(&mut self, token: Token) -> Result<bool, EngineError> {
        let Some(constraint) = &mut self.constraint else { return Ok(false) };
        constraint.say(token).map_err(|error| match error {
            GrammarError::Left { .. } => refused(
                "no token that the grammar allows here can be chosen: logit_bias forbids them, or the model's logits \
                 are no numbers"
                    .to_owned(),
            ),
            other => refused(other.to_string()),
        })
    }
}

impl Sampler for LlamaSampler {
    fn prompt(&mut self, token: Token) {
        self.record(token);
    }

    fn sample(&mut self, position: Position, raw: &[f32]) -> Result<Sampled, EngineError> {
        let is_changed = self.change(raw)?;
        let logits = if is_changed { self.changed.as_slice() } else { raw };
        let noise = Noise::new(self.seed, self.choice, position);
        let mut mu = None;
        let token = match &mut self.rule {
            Rule::Argmax => argmax(logits),
            Rule::Plain => pick::scan(logits, self.temperature, noise),
            Rule::Filtered(filters) => {
                self.candidates.fill(logits);
                let temperature = filters.apply(&mut self.candidates, self.temperature, noise);
                pick::best(&self.candidates, temperature, noise)
            }
            Rule::Mirostat(mirostat) => {
                self.candidates.fill(logits);
                let token = mirostat.choose(&mut self.candidates, noise);
                mu = Some(mirostat.mu());
                token
            }
        };
        let logprobs = self.top_logprobs.map(|n| logprobs::of(raw, token, n));
        let grammar_ended = self.follow(token)?;
        self.record(token);
        Ok(Sampled { token, logprobs, mu, grammar_ended })
    }

    /// A grammar is left to the front, which knows it anyway and cuts drafts where they leave it.
    fn drafting(&self) -> Option<Box<dyn Sampler>> {
        Some(Box::new(Self {
            seed: self.seed,
            choice: self.choice,
            temperature: self.temperature,
            bias: self.bias.clone(),
            constraint: None,
            penalties: self.penalties.clone(),
            dry: self.dry.clone(),
            rule: self.rule.clone(),
            top_logprobs: Some(0),
            changed: Vec::new(),
            candidates: Candidates::default(),
        }))
    }
}

/// Refuses what would otherwise give nonsense without a word.
fn check(params: &SamplerParams, n_vocab: usize) -> Result<(), EngineError> {
    let numbers = [
        ("temperature", params.temperature),
        ("dynatemp_range", params.dynatemp_range),
        ("dynatemp_exponent", params.dynatemp_exponent),
        ("top_p", params.top_p),
        ("min_p", params.min_p),
        ("typical_p", params.typical_p),
        ("top_n_sigma", params.top_n_sigma),
        ("repeat_penalty", params.repeat_penalty),
        ("frequency_penalty", params.frequency_penalty),
        ("presence_penalty", params.presence_penalty),
        ("dry_multiplier", params.dry.multiplier),
        ("dry_base", params.dry.base),
        ("xtc_probability", params.xtc.probability),
        ("xtc_threshold", params.xtc.threshold),
    ];
    for (name, value) in numbers {
        if !value.is_finite() {
            return Err(refused(format!("{name} must be a finite number, not {value}")));
        }
    }
    if params.repeat_penalty <= 0.0 {
        return Err(refused(format!("repeat_penalty must be above 0, not {}", params.repeat_penalty)));
    }
    if let Some(mirostat) = &params.mirostat {
        if ![1, 2].contains(&mirostat.version) {
            return Err(refused(format!("mirostat must be 1 or 2, not {}", mirostat.version)));
        }
        if ![mirostat.tau, mirostat.eta, mirostat.mu].iter().all(|value| value.is_finite()) {
            return Err(refused("mirostat's tau, eta and mu must be finite numbers".to_owned()));
        }
    }
    for &(token, bias) in &params.logit_bias {
        if usize::try_from(token.0).map_or(true, |id| id >= n_vocab) {
            return Err(refused(format!("logit_bias names token {token}, which is not in the vocabulary")));
        }
        if bias.is_nan() || bias == f32::INFINITY {
            return Err(refused(format!("logit_bias of token {token} must be a number, not {bias}")));
        }
    }
    Ok(())
}

fn refused(reason: String) -> EngineError {
    EngineError { reason }
}
