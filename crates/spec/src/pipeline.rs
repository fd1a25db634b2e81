//! One sequence's committed tokens and its windows in flight.
//!
//! Owns: what is claimed at which position, epochs, commits, and the end. Does not know where proposals come from
//! or how wide and deep to guess: the caller says both with every window.

use std::collections::VecDeque;

use protocol::{End, Epoch, Position, SeqId, Token, Verdict, Window, WindowId};

use crate::{ProposalError, VerdictFault};

/// What a pipeline must know about its sequence; constant for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The sequence.
    pub seq: SeqId,
    /// Vocabulary entries; tokens are `0..n_vocab`.
    pub n_vocab: u32,
    /// As in [`protocol::Open`]: the sequence ends with the token at position `limit - 1`.
    pub limit: Position,
    /// Windows of the open epoch in flight at most; at least 1. Stale ones come on top, fewer than this many.
    pub max_in_flight: usize,
}

/// What a verdict changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Committed tokens that had been proposed.
    pub n_accepted: u32,
    /// The epoch that the verdict opened by contradicting what had been sent.
    pub opened: Option<Epoch>,
    /// Windows in flight that became stale: the tail drops them without an answer.
    pub n_stale: u32,
}

/// Counters of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Windows sent.
    pub windows: u32,
    /// Of those, answered by a verdict.
    pub live_windows: u32,
    /// Of those, made stale by a contradiction or by the end.
    pub stale_windows: u32,
    /// Tokens proposed and sent.
    pub proposed: u32,
    /// Of those, committed.
    pub accepted: u32,
}

impl Stats {
    /// Adds another sequence's counts.
    pub const fn add(&mut self, other: &Self) {
        self.windows += other.windows;
        self.live_windows += other.live_windows;
        self.stale_windows += other.stale_windows;
        self.proposed += other.proposed;
        self.accepted += other.accepted;
    }
}

/// A window that has no verdict yet. Its tokens are in [`Pipeline::tokens`] as long as its epoch is open.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    window: WindowId,
    epoch: Epoch,
    base: Position,
    n_rows: usize,
}

/// One sequence after its prompt: commits what verdicts say and claims what may come next.
///
/// The tokens at positions `0..n_committed` are certain. The last of them, the *anchor*, has not been an input yet.
/// Windows of one epoch tile the positions from the anchor on; the first verdict that contradicts what was sent
/// opens the next epoch at the corrected position, and nothing waits for the windows left behind.
#[derive(Clone, Debug)]
pub struct Pipeline {
    setup: Setup,
    /// Committed tokens, then the proposed ones that are in flight in the open epoch.
    tokens: Vec<Token>,
    n_committed: usize,
    epoch: Epoch,
    next_window: WindowId,
    /// Oldest first: those of the last closed epoch, then those of the open one.
    in_flight: VecDeque<InFlight>,
    ended: Option<End>,
    stats: Stats,
}

impl Pipeline {
    /// A sequence whose prompt but for the last token (the anchor) is resident or on its way to be.
    ///
    /// # Panics
    /// If the prompt is empty or leaves no room below `setup.limit`, or if `setup.max_in_flight` is 0: the caller
    /// checks requests before it opens sequences.
    #[must_use]
    pub fn new(setup: Setup, prompt: Vec<Token>) -> Self {
        assert!(!prompt.is_empty(), "a prompt has at least one token");
        assert!(prompt.len() < setup.limit.0 as usize, "a prompt leaves room for one token below the limit");
        assert!(setup.max_in_flight > 0, "at least one window must be allowed in flight");
        Self {
            setup,
            n_committed: prompt.len(),
            tokens: prompt,
            epoch: Epoch(0),
            next_window: WindowId(0),
            in_flight: VecDeque::new(),
            ended: None,
            stats: Stats::default(),
        }
    }

    /// The next window to send, if one may be sent now: at most `width` rows, holding as much of `proposal` as fits.
    ///
    /// `proposal` continues [`Pipeline::optimistic`]. With nothing of the open epoch in flight the window starts
    /// with the anchor, so an empty proposal is plain decoding. Otherwise it holds proposed tokens only, and an empty
    /// proposal gives none. There is none after the end, at the depth limit, or where every further row would
    /// predict a position beyond the limit.
    ///
    /// # Errors
    /// If the part of the proposal that would be sent is not all in the vocabulary; nothing is sent then.
    ///
    /// # Panics
    /// If `width` is 0.
    pub fn next_window(&mut self, width: usize, proposal: &[Token]) -> Result<Option<Window>, ProposalError> {
        assert!(width > 0, "a window has at least one row");
        let n_live = self.n_live();
        if self.ended.is_some() || n_live == self.setup.max_in_flight {
            return Ok(None);
        }
        let run_ahead = n_live > 0;
        let (start, n_anchors) = if run_ahead { (self.tokens.len(), 0) } else { (self.n_committed - 1, 1) };
        // A row at `limit - 1` would predict a position that the sequence never has.
        let n_rows = width.min((self.setup.limit.0 as usize - 1).saturating_sub(start));
        let drafts = &proposal[..proposal.len().min(n_rows.saturating_sub(n_anchors))];
        if let Some(&token) = drafts.iter().find(|&&token| !self.is_in_vocabulary(token)) {
            return Err(ProposalError::UnknownToken { token, n_vocab: self.setup.n_vocab });
        }
        self.tokens.extend_from_slice(drafts);
        let tokens = self.tokens[start..].to_vec();
        if tokens.is_empty() {
            return Ok(None);
        }
        let window = self.next_window;
        self.next_window = WindowId(window.0 + 1);
        let base = Position(start as u32);
        self.in_flight.push_back(InFlight { window, epoch: self.epoch, base, n_rows: tokens.len() });
        self.stats.windows += 1;
        self.stats.proposed += drafts.len() as u32;
        Ok(Some(Window {
            seq: self.setup.seq,
            epoch: self.epoch,
            window,
            base,
            tokens,
            run_ahead,
            want_draft: None,
        }))
    }

    /// Commits a verdict's tokens. They are the last `verdict.tokens.len()` of [`Pipeline::committed`] afterwards.
    ///
    /// # Errors
    /// If no honest tail could have given it after what was sent; nothing is committed then.
    pub fn handle_verdict(&mut self, verdict: &Verdict) -> Result<Commit, VerdictFault> {
        let n_answered = self.check(verdict)?;
        self.in_flight.drain(..n_answered);
        self.stats.live_windows += 1;

        let sent = &self.tokens[self.n_committed..];
        let n_accepted = verdict.tokens.iter().zip(sent).take_while(|(token, sent)| token == sent).count();
        let contradicted = n_accepted < verdict.tokens.len() && n_accepted < sent.len();
        self.stats.accepted += n_accepted as u32;
        self.ended = verdict.ended;

        let mut commit = Commit { n_accepted: n_accepted as u32, opened: None, n_stale: 0 };
        if contradicted || verdict.ended.is_some() {
            self.tokens.truncate(self.n_committed + n_accepted);
            commit.n_stale = self.in_flight.len() as u32;
            self.stats.stale_windows += commit.n_stale;
        }
        if contradicted && verdict.ended.is_none() {
            self.epoch = self.epoch.next();
            commit.opened = Some(self.epoch);
        }
        self.tokens.extend_from_slice(&verdict.tokens[n_accepted..]);
        self.n_committed += verdict.tokens.len();
        Ok(commit)
    }

    /// How many windows in flight the verdict settles: its own and the stale ones before it.
    fn check(&self, verdict: &Verdict) -> Result<usize, VerdictFault> {
        let window = verdict.window;
        if self.ended.is_some() {
            return Err(VerdictFault::AfterEnd { window });
        }
        let Some(index) = self.in_flight.iter().position(|sent| sent.window == window) else {
            return Err(VerdictFault::UnknownWindow { window });
        };
        let sent = self.in_flight[index];
        if sent.epoch < self.epoch {
            return Err(VerdictFault::StaleWindow { window, epoch: sent.epoch, current: self.epoch });
        }
        if let Some(skipped) = self.in_flight.range(..index).find(|earlier| earlier.epoch == self.epoch) {
            return Err(VerdictFault::SkippedWindow { window, expected: skipped.window });
        }
        if verdict.epoch != sent.epoch {
            return Err(VerdictFault::WrongEpoch { window, epoch: verdict.epoch, expected: sent.epoch });
        }
        if verdict.base != sent.base {
            return Err(VerdictFault::WrongBase { window, base: verdict.base, expected: sent.base });
        }
        assert_eq!(sent.base.0 as usize, self.n_committed - 1, "the oldest live window starts at the anchor");
        self.check_tokens(verdict, sent.n_rows)?;
        Ok(index + 1)
    }

    /// Whether a tail that follows the rules could have stopped where the verdict does, and only there.
    fn check_tokens(&self, verdict: &Verdict, n_rows: usize) -> Result<(), VerdictFault> {
        let window = verdict.window;
        let n_tokens = verdict.tokens.len();
        if n_tokens > n_rows {
            return Err(VerdictFault::TooLong { window, n_tokens, n_rows });
        }
        let Some((&last, before)) = verdict.tokens.split_last() else {
            return Err(VerdictFault::Empty { window });
        };
        if let Some(&token) = verdict.tokens.iter().find(|&&token| !self.is_in_vocabulary(token)) {
            return Err(VerdictFault::UnknownToken { window, token, n_vocab: self.setup.n_vocab });
        }
        let claimed = &self.tokens[self.n_committed..self.n_committed + n_rows - 1];
        for (i, (&token, &sent)) in before.iter().zip(claimed).enumerate() {
            if token != sent {
                let position = Position(self.n_committed as u32).plus(i);
                return Err(VerdictFault::Disagrees { window, position, token, sent });
            }
        }
        let limit = self.setup.limit;
        let position = Position(self.n_committed as u32).plus(before.len());
        match verdict.ended {
            None if claimed.get(before.len()) == Some(&last) => {
                Err(VerdictFault::StoppedShort { window, position })
            }
            None if position.plus(1) == limit => Err(VerdictFault::LimitPassed { window, limit }),
            Some(End::Limit) if position.plus(1) != limit => {
                Err(VerdictFault::LimitNotReached { window, position, limit })
            }
            _ => Ok(()),
        }
    }

    /// Every token that is certain: the prompt and what verdicts added.
    #[must_use]
    pub fn committed(&self) -> &[Token] {
        &self.tokens[..self.n_committed]
    }

    /// The committed tokens and the proposed ones in flight behind them: what a proposal continues.
    #[must_use]
    pub fn optimistic(&self) -> &[Token] {
        &self.tokens
    }

    /// Lends the tokens of [`Pipeline::optimistic`] to be extended for a moment; what was added is taken away again.
    pub(crate) fn lend<R>(&mut self, borrow: impl FnOnce(&mut Vec<Token>) -> R) -> R {
        let n_tokens = self.tokens.len();
        let result = borrow(&mut self.tokens);
        self.tokens.truncate(n_tokens);
        result
    }

    /// Why the sequence ended, once it has.
    #[must_use]
    pub const fn ended(&self) -> Option<End> {
        self.ended
    }

    /// The open epoch.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Windows without a verdict, the stale ones among them included.
    #[must_use]
    pub fn n_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Windows that a verdict is still to come for: those of the open epoch, and none after the end.
    #[must_use]
    pub fn n_live(&self) -> usize {
        if self.ended.is_some() {
            return 0;
        }
        self.in_flight.iter().rev().take_while(|sent| sent.epoch == self.epoch).count()
    }

    /// Rows of each window that a verdict is still to come for, the newest first.
    pub(crate) fn live_rows(&self) -> impl Iterator<Item = u32> {
        let n_live = self.n_live();
        self.in_flight.iter().rev().take(n_live).map(|sent| sent.n_rows as u32)
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Vocabulary entries.
    pub(crate) const fn n_vocab(&self) -> u32 {
        self.setup.n_vocab
    }

    pub(crate) const fn is_in_vocabulary(&self, token: Token) -> bool {
        token.0 >= 0 && token.0.cast_unsigned() < self.setup.n_vocab
    }
}
