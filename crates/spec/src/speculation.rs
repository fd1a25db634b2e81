//! One sequence that guesses: its pipeline, its sources, and how far it goes.
//!
//! Owns: when a window leaves and what is in it, and what each verdict teaches. Plain decoding is the same path without
//! sources. Knows of other sequences only how many there are.

mod choosing;

use std::collections::VecDeque;
use std::time::Duration;

use protocol::{End, Epoch, Position, TailDraft, Token, Verdict, Window, WindowId};

use crate::asking::Asking;
use crate::chain::{Chain, Tag};
use crate::controller::{Controller, MAX_DEPTH, Plan};
use crate::fault::{DraftFault, VerdictFault};
use crate::pace::Pace;
use crate::pipeline::{Commit, Pipeline, Setup, Stats};
use crate::plan::plain;
use crate::proposer::{Block, Draft, Proposer};
use crate::strategy::Speculate;
use crate::tally::Tally;

/// A verdict that takes longer than so many loops has waited for something that guessing has no part in.
const MOST_LOOPS: f64 = 4.0;

/// The line as one sequence sees it.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// How fast it is.
    pub pace: &'a Pace,
    /// Sequences that decode on it or are about to, this one included.
    pub n_live: u32,
}

/// What a sequence is opened with, besides its prompt.
#[derive(Debug)]
pub struct Start {
    /// The sequence.
    pub setup: Setup,
    /// Its prompt.
    pub prompt: Vec<Token>,
    /// The answer that the client expects, if it says so.
    pub prediction: Option<Vec<Token>>,
    /// Sources that the caller brings, asked after those of the strategy.
    pub own: Vec<Box<dyn Proposer>>,
}

/// What came of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What the pipeline made of it.
    pub commit: Commit,
    /// How long the window was under way.
    pub under_way: Duration,
    /// Whether other windows of the sequence were under way meanwhile.
    pub in_company: bool,
}

/// What has become of a sequence's text: the committed tokens and those sent ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextChange {
    /// The epoch in which it was sent.
    pub epoch: Epoch,
    /// The first position that changed, at most where the text ended before.
    pub from: Position,
    /// The tokens from there to the text's end.
    pub tokens: Vec<Token>,
}

/// Windows in flight over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// The most at once.
    pub most: u32,
    /// Sum over time of the windows in flight, in window-microseconds; divided by `time_us` it is the mean.
    pub sum_us: u64,
    /// Microseconds from the first window to the last verdict.
    pub time_us: u64,
}

impl InFlight {
    /// The mean number of windows in flight; 0 before any time has passed.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.time_us == 0 { 0.0 } else { self.sum_us as f64 / self.time_us as f64 }
    }

    /// Adds another sequence's windows.
    pub fn add(&mut self, other: &Self) {
        self.most = self.most.max(other.most);
        self.sum_us += other.sum_us;
        self.time_us += other.time_us;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Speculation {
    /// Sources at the end of the chain that the caller brought.
    n_own: usize,
    pipeline: Pipeline,
    chain: Chain,
    controller: Controller,
    plan: Plan,
    n_prompt: usize,
    /// How much of the text [`Speculation::text_change`] has told and nothing has contradicted; none at first.
    told: Option<usize>,
    /// Where each guess in flight comes from and how far ahead it was when it was sent.
    tags: VecDeque<(Tag, usize)>,
    /// Windows without a verdict.
    sent: VecDeque<Sent>,
    /// The draft that the tail has announced and not sent: where it begins, and how many tokens were asked for.
    announced: Option<(Position, u8)>,
    /// Since when a verdict has been waited for.
    waiting_since: Duration,
    in_flight: InFlight,
    /// Until when `in_flight` counts.
    counted: Duration,
    /// Whether the tail is asked for drafts.
    asking: Asking,
}

/// A window under way.
#[derive(Debug)]
struct Sent {
    window: WindowId,
    /// When it left.
    at: Duration,
    /// Tokens that the tail was asked to draft behind its verdict.
    n_asked: u8,
}

impl Speculation {
    /// A sequence that has sent its prompt.
    ///
    /// # Panics
    /// As [`Pipeline::new`].
    #[must_use]
    pub fn new(start: Start, speculate: &Speculate) -> Self {
        let Start { setup, prompt, prediction, own } = start;
        let (mut sources, order) = speculate.sources(prediction);
        let n_own = own.len();
        sources.extend(own);
        Self {
            n_own,
            n_prompt: prompt.len(),
            told: None,
            chain: Chain::new(sources, order, setup.n_vocab, &prompt),
            pipeline: Pipeline::new(setup, prompt),
            controller: Controller::new(speculate.reach),
            plan: Plan::PLAIN,
            tags: VecDeque::new(),
            sent: VecDeque::new(),
            announced: None,
            waiting_since: Duration::ZERO,
            in_flight: InFlight::default(),
            counted: Duration::ZERO,
            asking: Asking::new(),
        }
    }

    /// Gives the caller's own sources back, for the text to go on in another sequence; this one guesses without them.
    pub fn take_own(&mut self) -> Vec<Box<dyn Proposer>> {
        self.chain.take_last(std::mem::take(&mut self.n_own))
    }

    /// Windows in flight at most, to be given to [`Setup`].
    #[must_use]
    pub const fn max_in_flight() -> usize {
        MAX_DEPTH as usize
    }

    /// The next window to send, if one should leave now. With nothing in flight one does, unless the tail has promised a
    /// draft that it shall begin with: then one does when that has come ([`Speculation::handle_draft`]).
    pub fn next_window(&mut self, line: Line<'_>, now: Duration) -> Option<Window> {
        if self.pipeline.ended().is_some() {
            return None;
        }
        let n_live = self.pipeline.n_live();
        let (mut guesses, n_fit) = if n_live == 0 {
            let guesses = self.choose(line);
            if self.chain.waits() && !self.controller.is_pausing() {
                return None;
            }
            (guesses, self.plan.width as usize - 1)
        } else if self.has_room(line.pace) {
            let n_fit = self.plan.width as usize;
            let guesses = self.propose(n_fit + 1);
            if guesses.is_empty() {
                return None;
            }
            (guesses, n_fit)
        } else {
            return None;
        };
        // With which token the next window should begin.
        let next = guesses.get(n_fit).map(|guess| guess.token).filter(|_| self.plan.depth > 1);
        guesses.truncate(n_fit);
        let tokens: Vec<Token> = guesses.iter().map(|guess| guess.token).collect();
        let depth = self.tags.len();
        self.count(now);
        let before = self.pipeline.optimistic().len();
        let window = self.pipeline.next_window(self.plan.width as usize, &tokens);
        let mut window = window.expect("the chain gives out tokens of the vocabulary only")?;
        window.want_draft = self.want_draft(line.pace, n_live, next);
        let n_guesses = self.pipeline.optimistic().len() - before;
        for (i, guess) in guesses.into_iter().take(n_guesses).enumerate() {
            let depth = depth + i + 1;
            self.chain.sent(guess.tag, depth);
            self.tags.push_back((guess.tag, depth));
        }
        if n_live == 0 {
            self.waiting_since = now;
        }
        let n_asked = window.want_draft.as_ref().map_or(0, |want| want.tokens);
        self.sent.push_back(Sent { window: window.window, at: now, n_asked });
        self.in_flight.most = self.in_flight.most.max(self.pipeline.n_live() as u32);
        Some(window)
    }

    /// Commits a verdict's tokens and learns from them.
    ///
    /// # Errors
    /// If no honest tail could have given it; nothing has changed then.
    pub fn handle_verdict(
        &mut self,
        verdict: &Verdict,
        line: Line<'_>,
        now: Duration,
    ) -> Result<Answered, VerdictFault> {
        let guessed = !self.tags.is_empty();
        let in_company = self.pipeline.n_in_flight() > 1;
        let n_before = self.pipeline.committed().len();
        self.count(now);
        let sent = self.sent.iter().find(|sent| sent.window == verdict.window);
        let n_asked = sent.map_or(0, |sent| sent.n_asked);
        if verdict.drafts && (n_asked == 0 || verdict.ended.is_some()) {
            return Err(VerdictFault::UnaskedDraft { window: verdict.window });
        }
        let commit = self.pipeline.handle_verdict(verdict)?;
        if commit.opened.is_some() {
            self.told = self.told.map(|told| told.min(n_before + commit.n_accepted as usize));
        }
        if verdict.drafts {
            let base = Position(self.pipeline.committed().len() as u32);
            self.announced = Some((base, n_asked));
            self.chain.promise(base);
        }
        self.learn(n_before, commit.n_accepted as usize);
        let under_way = self.settle_sent(verdict.window, now);
        let n_tokens = verdict.tokens.len() as u32;
        let mut n_wasted = 0;
        if commit.opened.is_some() || verdict.ended.is_some() {
            // The guess that was wrong was an input too.
            n_wasted = self.tags.len() + usize::from(commit.opened.is_some());
            self.tags.clear();
        }
        self.controller.settled(n_tokens, n_wasted, line.pace, line.n_live);
        if !self.chain.is_empty() && line.pace.is_known() {
            // The first one waited for the prompt, and any may have waited for that of another: that is nobody's fault.
            let most = Duration::from_secs_f64(MOST_LOOPS * line.pace.busy().loop_time(self.plan.width));
            let took = now.saturating_sub(self.waiting_since).min(most);
            let plain = plain(line.pace, line.n_live);
            let guessed = guessed && n_before > self.n_prompt;
            self.controller.observe(n_tokens, took, guessed, plain);
        }
        self.waiting_since = now;
        if self.pipeline.n_live() > 0 {
            self.choose(line);
        }
        Ok(Answered { commit, under_way, in_company })
    }

    /// A draft for the source of that name has come. Whether there is such a source; if so, more may be sent.
    pub fn handle_draft(&mut self, source: &str, draft: Draft, line: Line<'_>) -> bool {
        let is_known = self.chain.handle_draft(source, draft);
        if is_known && self.pipeline.n_live() > 0 {
            self.choose(line);
        }
        is_known
    }

    /// A draft of the tail's own has come. Whether more may be sent now. What it is worth decides whether more are asked for.
    ///
    /// # Errors
    /// If it is not the one that was announced, or not what was asked for; nothing has changed then.
    pub fn handle_tail_draft(&mut self, draft: TailDraft, line: Line<'_>) -> Result<bool, DraftFault> {
        let TailDraft { base, tokens, probabilities, timing, .. } = draft;
        let Some((_, n_asked)) = self.announced.filter(|&(announced, _)| announced == base) else {
            return Err(DraftFault::Unannounced { base });
        };
        if tokens.len() > usize::from(n_asked) {
            return Err(DraftFault::TooLong { base, n_tokens: tokens.len(), n_asked });
        }
        if let Some(&token) = tokens.iter().find(|&&token| !self.pipeline.is_in_vocabulary(token)) {
            return Err(DraftFault::UnknownToken { base, token, n_vocab: self.pipeline.n_vocab() });
        }
        self.announced = None;
        let Some(source) = self.chain.drafted_by_tail() else { return Ok(false) };
        let n_tokens = tokens.len();
        let block = Block { tokens, run: 0, probabilities };
        self.chain.handle_tail_draft(source, Draft { epoch: self.epoch(), base, block }, &timing);
        if self.controller.only().is_none() && self.pipeline.ended().is_none() && n_tokens > 0 {
            self.weigh(source, n_tokens, line);
        }
        if self.pipeline.n_live() > 0 {
            self.choose(line);
        }
        Ok(true)
    }

    /// How long a draft of the tail's own has been waited for, if nothing else was.
    #[must_use]
    pub fn has_waited(&self, now: Duration) -> Option<Duration> {
        (self.pipeline.n_live() == 0).then(|| now.saturating_sub(self.waiting_since))
    }

    /// What has changed of the text since this was asked last (since the prompt, at first), for whoever drafts elsewhere;
    /// none if nothing has, after the end, and while no guesses are sent because they have lost.
    pub fn text_change(&mut self) -> Option<TextChange> {
        let text = self.pipeline.optimistic();
        let from = self.told.unwrap_or(self.n_prompt);
        if self.told == Some(text.len()) || self.pipeline.ended().is_some() || self.controller.is_pausing() {
            return None;
        }
        self.told = Some(text.len());
        let (epoch, tokens) = (self.pipeline.epoch(), text[from..].to_vec());
        Some(TextChange { epoch, from: Position(from as u32), tokens })
    }

    /// As [`Pipeline::committed`].
    #[must_use]
    pub fn committed(&self) -> &[Token] {
        self.pipeline.committed()
    }

    /// As [`Pipeline::ended`].
    #[must_use]
    pub const fn ended(&self) -> Option<End> {
        self.pipeline.ended()
    }

    /// As [`Pipeline::epoch`].
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.pipeline.epoch()
    }

    /// As [`Pipeline::n_in_flight`].
    #[must_use]
    pub fn n_in_flight(&self) -> usize {
        self.pipeline.n_in_flight()
    }

    /// As [`Pipeline::n_live`].
    #[must_use]
    pub fn n_live(&self) -> usize {
        self.pipeline.n_live()
    }

    /// The pipeline's counters.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.pipeline.stats()
    }

    /// Guesses by source and distance.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.chain.tally
    }

    /// Windows in flight so far.
    #[must_use]
    pub const fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// What is aimed at now.
    #[must_use]
    pub const fn plan(&self) -> Plan {
        self.plan
    }

    /// Whether another window may leave beside those in flight. A width that has changed leaves windows of other widths
    /// in flight, which keep the line busy for longer or shorter: their times count then, not their number.
    fn has_room(&self, pace: &Pace) -> bool {
        let Plan { width, depth } = self.plan;
        let n_live = self.pipeline.n_live();
        if self.controller.is_depth_pinned() || !pace.is_known() {
            return n_live < depth as usize;
        }
        if n_live >= self.controller.max_depth() as usize {
            return false;
        }
        let one = pace.busy().slowest(width);
        let under_way: f64 = self.pipeline.live_rows().map(|rows| pace.busy().slowest(rows)).sum();
        under_way + one <= f64::from(depth) * one * (1.0 + 1e-9)
    }

    /// Tells the sources what became of the guesses.
    fn learn(&mut self, n_before: usize, n_accepted: usize) {
        if self.chain.is_empty() {
            return;
        }
        let committed = self.pipeline.committed();
        for n in n_before..committed.len() {
            if let Some((tag, depth)) = self.tags.pop_front() {
                let was_right = n - n_before < n_accepted;
                self.chain.judged(tag, &committed[..n], was_right);
                if was_right {
                    self.chain.tally.accepted(tag.source, depth);
                }
            }
            self.chain.commit(&committed[..=n]);
        }
    }

    /// Forgets the windows up to this one; how long it was under way.
    fn settle_sent(&mut self, window: WindowId, now: Duration) -> Duration {
        while let Some(sent) = self.sent.pop_front() {
            if sent.window == window {
                return now.saturating_sub(sent.at);
            }
        }
        Duration::ZERO
    }

    /// Counts the windows in flight up to now.
    fn count(&mut self, now: Duration) {
        let n_in_flight = self.pipeline.n_live() as u64;
        if n_in_flight > 0 {
            let time = now.saturating_sub(self.counted).as_micros() as u64;
            self.in_flight.time_us += time;
            self.in_flight.sum_us += n_in_flight * time;
        }
        self.counted = now;
    }
}
