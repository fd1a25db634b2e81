//! Repeat, frequency and presence penalties, as llama.cpp defines them. Walks the recent tokens, not the vocabulary.

use std::collections::{BTreeMap, VecDeque};

use protocol::{SamplerParams, Token};

/// The most recent tokens, with counts.
#[derive(Clone)]
pub(super) struct Recent {
    limit: usize,
    order: VecDeque<Token>,
    counts: BTreeMap<Token, u32>,
}

impl Recent {
    /// `last_n` of -1 (or below) is the whole context.
    pub(super) fn new(last_n: i32, context: u32) -> Self {
        let context = context as usize;
        let limit = usize::try_from(last_n).map_or(context, |n| n.min(context));
        Self { limit, order: VecDeque::new(), counts: BTreeMap::new() }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn push(&mut self, token: Token) {
        if self.limit == 0 {
            return;
        }
        if self.order.len() == self.limit
            && let Some(oldest) = self.order.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.order.push_back(token);
        *self.counts.entry(token).or_insert(0) += 1;
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = Token> {
        self.counts.keys().copied()
    }
}

/// The penalties with their state.
#[derive(Clone)]
pub(super) struct Penalties {
    recent: Recent,
    repeat: f32,
    frequency: f32,
    presence: f32,
}

impl Penalties {
    /// None if nothing is penalised.
    pub(super) fn new(params: &SamplerParams, context: u32) -> Option<Self> {
        let neutral =
            params.repeat_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0;
        let recent = Recent::new(params.penalty_last_n, context);
        (!neutral && recent.limit() > 0).then_some(Self {
            recent,
            repeat: params.repeat_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
        })
    }

    pub(super) fn accept(&mut self, token: Token) {
        self.recent.push(token);
    }

    /// Dividing a negative logit would favour the token, so it is multiplied (as llama.cpp does).
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (token, &count) in &self.recent.counts {
            let Some(logit) = logits.get_mut(token.0.cast_unsigned() as usize) else { continue };
            if *logit <= 0.0 {
                *logit *= self.repeat;
            } else {
                *logit /= self.repeat;
            }
            *logit -= count as f32 * self.frequency + self.presence;
        }
    }
}
