//! What a sequence chooses: guesses, how wide and how deep they are sent, and whether the tail is asked for drafts.

use protocol::{Token, WantDraft};

use super::{Line, Speculation};
use crate::chain::Guess;
use crate::controller::Plan;
use crate::pace::Pace;
use crate::plan::Outlook;

/// Guesses looked at to choose a width and a depth. Where there are as many, more of the kind are expected.
const HORIZON: usize = 64;

/// A token of a draft is asked for if it, and all before it, come true with this probability: what is expected at first, and
/// the least and most that are asked for whatever the times say.
const WORTH: f64 = 0.25;
const WORTH_WITHIN: (f64, f64) = (0.03, 0.8);

impl Speculation {
    pub(super) fn propose(&mut self, n: usize) -> Vec<Guess> {
        if self.chain.is_empty() || n == 0 {
            return Vec::new();
        }
        let (n_committed, epoch) = (self.pipeline.committed().len(), self.pipeline.epoch());
        self.pipeline.lend(|text| self.chain.propose(text, n_committed, epoch, n))
    }

    /// Chooses width and depth for what is in flight and what could follow, which is returned.
    pub(super) fn choose(&mut self, line: Line<'_>) -> Vec<Guess> {
        if self.chain.is_empty() {
            return Vec::new();
        }
        if let Some(only) = self.controller.only() {
            self.plan = only;
            return if self.pipeline.n_live() == 0 { self.propose(only.width as usize) } else { Vec::new() };
        }
        let guesses = self.propose(HORIZON);
        // With windows under way it would tell nothing.
        self.plan = if self.pipeline.n_live() == 0 && self.measures_plain(line.pace) {
            Plan::PLAIN
        } else {
            self.controller.plan(&self.outlook(&guesses), line.pace, line.n_live)
        };
        guesses
    }

    /// Whether a window shall have no guess, for the line to know what that costs.
    fn measures_plain(&self, pace: &Pace) -> bool {
        pace.is_plain_stale() && self.controller.may_be_plain()
    }

    /// What is known about the guesses in flight and these behind them.
    fn outlook(&self, guesses: &[Guess]) -> Outlook {
        let sent = self.tags.iter().map(|(tag, _)| *tag);
        let hazards = sent.chain(guesses.iter().map(|guess| guess.tag)).map(|tag| self.chain.hazard(tag));
        let last = guesses.last().map(|guess| guess.tag).or_else(|| self.tags.back().map(|(tag, _)| *tag));
        let goes_on = guesses.len() == HORIZON || last.is_some_and(|tag| self.chain.is_coming(tag.source));
        Outlook::new(hazards, goes_on)
    }

    /// Weighs a draft that has come against what the line would do without it.
    pub(super) fn weigh(&mut self, source: usize, n_tokens: usize, line: Line<'_>) {
        let time = line.pace.draft_time(n_tokens);
        if time == 0.0 {
            // As long as nobody knows what one costs, the next one is to tell.
            return;
        }
        let place = (self.pipeline.committed().len(), self.pipeline.epoch());
        let mut found = |but: Option<usize>| {
            let guesses = self.pipeline.lend(|text| self.chain.propose_but(but, text, place, HORIZON));
            self.controller.best(&self.outlook(&guesses), line.pace, line.n_live).1
        };
        let (without, with) = (found(Some(source)), found(None));
        self.asking.weigh(with.after(time), without);
    }

    /// How likely a token of a draft must come true to be worth its time.
    fn worth(&self, pace: &Pace) -> f64 {
        let rate = self.asking.rate().filter(|_| pace.is_known());
        let (least, most) = WORTH_WITHIN;
        rate.map_or(WORTH, |rate| (rate * pace.drafted_token_time()).clamp(least, most))
    }

    /// What the tail shall draft behind a window: nothing while drafts are not worth their time, but for a try from time to
    /// time. `next` is what the window after it begins with.
    pub(super) fn want_draft(
        &mut self,
        pace: &Pace,
        n_live: usize,
        next: Option<Token>,
    ) -> Option<WantDraft> {
        let tokens = self.chain.wants(self.worth(pace)).min(self.controller.most_guesses());
        let rests = self.controller.is_pausing() || self.measures_plain(pace);
        if tokens == 0 || rests || !self.asking.asks(n_live == 0) {
            return None;
        }
        Some(WantDraft { tokens, unless: next })
    }
}
