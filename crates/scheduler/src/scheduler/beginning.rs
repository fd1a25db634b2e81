//! What a new sequence begins with: a parked prefix, what a running sequence computes anyway, or what is stored.

use protocol::{Close, Held, Position, PrefixKey, Reuse, SeqId, Token, Work};

use super::{Output, Scheduler};
use crate::config::{Config, Cuts};
use crate::prefixes::{Hit, LEAST, Namespace, SHARED, Trust};
use crate::sequence::{Origin, Sequence};
use crate::shelf::Shelved;

/// What a sequence begins with: a prefix of which every stage has its part, or one of which only the later stages do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beginning {
    /// The first position that every stage computes.
    pub(super) start: Position,
    pub(super) reuse: Option<Reuse>,
    pub(super) origin: Option<Origin>,
    pub(super) held: Option<Held>,
}

impl Beginning {
    fn with(reuse: Reuse, len: usize, origin: Origin) -> Self {
        let start = Position(len as u32);
        Self { start, reuse: Some(reuse), origin: Some(origin), held: None }
    }
}

impl Scheduler {
    /// What spares most of a text. A running sequence must be waited for and a store must be read, so each must spare
    /// more than what is at hand, by as much as that takes.
    pub(super) fn find_beginning(&mut self, namespace: Namespace, text: &[Token], trust: Trust) -> Beginning {
        if trust == Trust::Nothing {
            return Beginning::default();
        }
        let cuts = self.config.cuts != Cuts::Nowhere;
        let parked = self.find_parked(namespace, text, trust).filter(|hit| cuts || !hit.keep);
        let at_hand = parked.map_or(0, |hit| hit.len);
        // A copy is what is saved of it: where that serves whole only, it has hardly ever come just so far.
        let most = self.config.cuts.whole_above();
        let running = self
            .find_running(namespace, text, at_hand)
            .filter(|hit| hit.len <= most && hit.len >= at_hand + LEAST);
        let soon = running.map_or(at_hand, |hit| hit.len);
        let least = soon + self.shelf.least();
        let stored = self.shelf.find(namespace, text);
        let stored = stored.filter(|hit| hit.len >= least);
        let spared = stored.map_or(soon, |hit| hit.len);
        if trust == Trust::All
            && let Some(held) = self.find_held(namespace, text, spared)
        {
            return Beginning { held: Some(held), ..Beginning::default() };
        }
        match (stored, running, parked) {
            (Some(hit), _, _) => self.begin_with_stored(namespace, hit).unwrap_or_default(),
            (None, Some(hit), _) => {
                let reuse = Reuse { prefix: hit.prefix, keep: true, stored: None };
                // By then it may have computed more.
                Beginning::with(reuse, taken(&self.config, hit.len, usize::MAX), Origin::Running)
            }
            (None, None, Some(hit)) => self.begin_with_parked(hit),
            (None, None, None) => Beginning::default(),
        }
    }

    /// What the later stages hold of a text, if that spares the line more than it does to begin all stages with `spared`
    /// tokens.
    fn find_held(&mut self, namespace: Namespace, text: &[Token], spared: usize) -> Option<Held> {
        let config = &self.config;
        let cuts = config.cuts != Cuts::Nowhere;
        let n_stages = usize::from(config.n_stages);
        let n_holding = n_stages.saturating_sub(self.remains.lost_by().into());
        let hit = self.remains.find(namespace, text).filter(|hit| cuts || !hit.keep)?;
        (hit.len * n_holding > spared * n_stages)
            .then(|| self.remains.take(hit, |len, whole| taken(config, len, whole)))
    }

    /// What is parked of this namespace, or of what everybody shares if that is more. The latter stays for others.
    fn find_parked(&mut self, namespace: Namespace, text: &[Token], trust: Trust) -> Option<Hit<SeqId>> {
        let own = self.prefixes.find(namespace, text, trust);
        let may_share = namespace != SHARED && self.config.copies_prefixes;
        let shared = may_share.then(|| self.prefixes.find(SHARED, text, trust)).flatten();
        let least = own.map_or(0, |hit| hit.len);
        shared.filter(|hit| hit.len > least).map(|hit| Hit { keep: true, ..hit }).or(own)
    }

    /// The running sequence that computes most of a text; of equals the one that began first. The last token of either is
    /// not shared: it asks for logits. One that has not come so far as what is `at_hand` would be waited for in vain.
    fn find_running(&self, namespace: Namespace, text: &[Token], at_hand: usize) -> Option<Hit<SeqId>> {
        let text = &text[..text.len().checked_sub(1)?];
        let shared = |sequence: &Sequence| {
            let other = sequence.text();
            let other = &other[..other.len().saturating_sub(1)];
            text.iter().zip(other).take_while(|(a, b)| a == b).count()
        };
        let is_its = |sequence: &Sequence| {
            !sequence.is_probe()
                && !sequence.is_closing()
                && sequence.n_passed() >= at_hand
                && sequence.asked().namespace.is_some_and(|its| its == namespace || its == SHARED)
        };
        let running = self.sequences.iter().filter(|(_, sequence)| is_its(sequence));
        let hits = running.map(|(&prefix, sequence)| Hit { prefix, len: shared(sequence), keep: true });
        hits.rev().max_by_key(|hit| hit.len)
    }

    fn begin_with_parked(&mut self, hit: Hit<SeqId>) -> Beginning {
        let Hit { prefix, len, keep } = hit;
        // A stage that has lost it may have stored it.
        let known = self.prefixes.tokens(prefix);
        let stored = known.and_then(|(space, tokens)| self.shelf.key(space, tokens));
        let len = taken(&self.config, len, known.map_or(len, |(_, tokens)| tokens.len()));
        let keep = keep && self.config.copies_prefixes;
        if !keep {
            self.prefixes.remove(prefix);
            self.shelf.unparked(prefix);
        }
        Beginning::with(Reuse { prefix, keep, stored }, len, Origin::Parked)
    }

    /// Every stage reads it back, as a prefix with an id of its own that others may begin with, too.
    fn begin_with_stored(&mut self, namespace: Namespace, hit: Hit<PrefixKey>) -> Option<Beginning> {
        let Hit { prefix: key, len, keep } = hit;
        let tokens = self.shelf.take_down(key)?;
        let len = taken(&self.config, len, tokens.len());
        self.outputs.push_back(Output::Shelved(Shelved::Used(key)));
        let prefix = self.next_seq();
        let mut keep = keep && self.config.copies_prefixes;
        if keep {
            for gone in self.prefixes.insert(namespace, tokens, prefix) {
                if gone == prefix {
                    keep = false;
                } else {
                    self.drop_prefix(gone);
                }
            }
        }
        let reuse = Reuse { prefix, keep, stored: Some(key) };
        Some(Beginning::with(reuse, len, Origin::Stored))
    }

    /// The tail has spoken of a sequence for the first time: every stage had what it begins with.
    pub(super) fn count_beginning(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let prefix = sequence.reuse().map(|reuse| reuse.prefix);
        let Some((start, origin)) = sequence.take_beginning() else { return };
        let n = u64::from(start.0);
        self.stats.reused_tokens += n;
        match origin {
            Origin::Parked => {
                let is_double = |&prefix: &SeqId| self.prefixes.mark_cut(prefix, start.0 as usize);
                if let Some(prefix) = prefix.filter(is_double) {
                    self.drop_prefix(prefix);
                }
            }
            Origin::Running => self.stats.shared_tokens += n,
            Origin::Stored => self.stats.restored_tokens += n,
        }
    }

    /// The stages need not keep a prefix any more, which the index has given up.
    pub(super) fn drop_prefix(&mut self, prefix: SeqId) {
        self.shelf.unparked(prefix);
        self.send(Work::Close(Close { seq: prefix, inputs: Position(0) }));
    }
}

/// Of `len` tokens that a text shares with one of `whole`, those that it begins with. The model's own blocks that draft
/// need the hidden row of the last one, which stages keep only at the end of what they hold: elsewhere that token is
/// computed again.
fn taken(config: &Config, len: usize, whole: usize) -> usize {
    len - usize::from(len < whole && config.speculate.drafts_itself())
}
