//! `mtp`: what the model's own blocks that draft (NextN) expect to follow, as the tail says.
//!
//! The tail drafts behind a verdict that was asked for it, and announces that with the verdict, so the draft is certain to
//! come. It continues committed tokens only; whatever was committed or sent since then either agrees with it or makes it
//! useless. A late draft therefore never changes what was sent, only what may be sent next.
//!
//! How many tokens are worth drafting is learned from how far drafts have come true, and from what a token costs.

use protocol::{Position, Token, limits};

use crate::chain::trust_of;
use crate::proposer::{Answer, Ask, Block, Draft, Prior, Proposer, RUNS, Trust};
use crate::tally::DraftTally;

/// Tokens in a draft at most, whatever is asked for.
pub const MAX_DRAFT: u8 = limits::MAX_DRAFT;
/// Tokens in a draft at most if nobody says how many.
pub const USUAL_DRAFT: u8 = 4;

/// A draft comes with probabilities; without them a model's own next token is right about three times in four.
const PRIOR: Prior = [0.3; RUNS.len() + 1];
/// What is expected of each token, given that those before it are right, before anything was measured: rather too much, since
/// what is not drafted is not measured.
const AT_FIRST: f64 = 0.9;
/// How fast that is learned: about the last thirty drafts matter.
const LEARN: f64 = 0.06;
/// How fast what is expected of a token that is not drafted becomes what is of the one before it, for each draft.
const FADE: f64 = 0.05;

/// See the module.
#[derive(Clone, Debug)]
pub struct Mtp {
    /// Tokens in a draft, if that is fixed.
    fixed: Option<u8>,
    /// Where the draft begins that was announced and has not come.
    promised: Option<Position>,
    /// The last draft, unless it was contradicted or is used up.
    held: Option<Draft>,
    /// How far the last draft has come true.
    right: usize,
    /// The share of tokens that come true, by how many of the draft come before them.
    agreement: [f64; USUAL_DRAFT as usize],
    drafts: DraftTally,
    /// Whether anything of the last draft was sent.
    is_used: bool,
}

impl Mtp {
    /// What the source is called.
    pub const NAME: &str = "mtp";

    /// A source that asks for drafts of `fixed` tokens, 1 to [`MAX_DRAFT`], or of as many as pay.
    #[must_use]
    pub fn new(fixed: Option<u8>) -> Self {
        Self {
            fixed: fixed.map(|n| n.clamp(1, MAX_DRAFT)),
            promised: None,
            held: None,
            right: 0,
            agreement: [AT_FIRST; USUAL_DRAFT as usize],
            drafts: DraftTally::default(),
            is_used: false,
        }
    }

    /// A token of the held draft was right or wrong.
    fn learn(&mut self, was_right: bool) {
        if let Some(share) = self.agreement.get_mut(self.right) {
            *share += LEARN * (f64::from(u8::from(was_right)) - *share);
        }
        // Behind a wrong one all are wrong.
        let n_drafted = self.held.as_ref().map_or(0, |draft| draft.block.tokens.len());
        let end = if was_right { self.right + 1 } else { n_drafted };
        for position in self.drafts.positions.iter_mut().take(end).skip(self.right) {
            position.judged += 1;
            position.right += u64::from(was_right);
        }
    }
}

/// How many of the draft's tokens `text` holds already; none if it does not reach the draft or differs from it.
fn known(draft: &Draft, text: &[Token]) -> Option<usize> {
    let said = text.get(draft.base.0 as usize..)?;
    draft.block.tokens.starts_with(said).then_some(said.len())
}

impl Proposer for Mtp {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn prior(&self) -> Prior {
        PRIOR
    }

    fn begin(&mut self, _prompt: &[Token]) {
        self.promised = None;
        self.held = None;
    }

    fn commit(&mut self, committed: &[Token]) {
        let Some(draft) = &self.held else { return };
        let last = committed.len().wrapping_sub(1);
        let Some(at) = last.checked_sub(draft.base.0 as usize) else { return };
        let was_right = draft.block.tokens.get(at) == committed.last();
        if at < draft.block.tokens.len() {
            self.right = at;
            self.learn(was_right);
        }
        if !was_right {
            self.held = None;
        }
    }

    fn shadow(&self, committed: &[Token]) -> Option<(Token, Trust)> {
        let draft = self.held.as_ref()?;
        let at = known(draft, committed)?;
        draft.block.tokens.get(at).map(|&token| (token, trust_of(&draft.block, at)))
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        let guesses = self.held.as_ref().and_then(|draft| {
            let at = known(draft, ask.tokens)?;
            let Block { tokens, run, probabilities } = &draft.block;
            let end = tokens.len().min(at + n);
            (at < end).then(|| Block {
                tokens: tokens[at..end].to_vec(),
                run: run.saturating_add(at as u32),
                probabilities: probabilities.get(at..end).unwrap_or(&[]).to_vec(),
            })
        });
        match guesses {
            Some(block) => Answer::Guesses(block),
            None if self.promised.is_some_and(|base| base.0 as usize == ask.tokens.len()) => Answer::Promised,
            // The next draft is asked for with the window behind this one's last token, so none is on its way.
            None => Answer::Nothing,
        }
    }

    fn wants(&self, worth: f64) -> u8 {
        if let Some(n) = self.fixed {
            return n;
        }
        let mut alive = 1.0;
        let worth = self.agreement.iter().take_while(|&&share| {
            alive *= share;
            alive >= worth
        });
        (worth.count() as u8).max(1)
    }

    fn sent(&mut self, n: usize) {
        if n > 0 && !std::mem::replace(&mut self.is_used, true) {
            self.drafts.used += 1;
        }
    }

    fn drafts(&self) -> Option<&DraftTally> {
        Some(&self.drafts)
    }

    fn promise(&mut self, base: Position) {
        self.promised = Some(base);
    }

    fn handle_draft(&mut self, draft: Draft) {
        if self.promised.take_if(|base| *base == draft.base).is_some() {
            let mut before = AT_FIRST;
            for (at, share) in self.agreement.iter_mut().enumerate() {
                if at >= draft.block.tokens.len() {
                    *share += FADE * (before - *share);
                }
                before = *share;
            }
            self.right = 0;
            self.is_used = false;
            self.drafts.made += u64::from(!draft.block.tokens.is_empty());
            self.held = Some(draft).filter(|draft| !draft.block.tokens.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Epoch;

    use super::*;

    fn tokens(ids: &[i32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    fn draft(base: u32, ids: &[i32]) -> Draft {
        let block = Block { tokens: tokens(ids), run: 0, probabilities: vec![0.5; ids.len()] };
        Draft { epoch: Epoch(0), base: Position(base), block }
    }

    fn ask(source: &mut Mtp, text: &[i32], n: usize) -> Result<Vec<i32>, bool> {
        let text = tokens(text);
        let ask = Ask { tokens: &text, n_committed: 1, n_sent: text.len(), epoch: Epoch(0) };
        match source.propose(&ask, n) {
            Answer::Guesses(block) => Ok(block.tokens.iter().map(|token| token.0).collect()),
            other => Err(other == Answer::Promised),
        }
    }

    fn promised(base: u32, ids: &[i32]) -> Mtp {
        let mut source = Mtp::new(None);
        source.promise(Position(base));
        source.handle_draft(draft(base, ids));
        source
    }

    #[test]
    fn a_draft_is_waited_for_only_where_it_was_promised() {
        let mut source = Mtp::new(None);
        assert_eq!(ask(&mut source, &[1, 2], 4), Err(false));
        source.promise(Position(2));
        assert_eq!(ask(&mut source, &[1, 2], 4), Err(true));
        assert_eq!(ask(&mut source, &[1, 2, 3], 4), Err(false), "something was sent meanwhile");
        source.handle_draft(draft(3, &[9]));
        assert_eq!(ask(&mut source, &[1, 2], 4), Err(true), "another draft is not the promised one");
        source.handle_draft(draft(2, &[3, 4, 5]));
        assert_eq!(ask(&mut source, &[1, 2], 2), Ok(vec![3, 4]));
        source.promise(Position(2));
        source.handle_draft(draft(2, &[]));
        assert_eq!(ask(&mut source, &[1, 2], 2), Err(false), "a draft that failed is no reason to wait");
    }

    #[test]
    fn a_draft_is_given_out_as_far_as_the_text_agrees_with_it() {
        let mut source = promised(2, &[3, 4, 5]);
        assert_eq!(ask(&mut source, &[1, 2, 3], 9), Ok(vec![4, 5]));
        assert_eq!(ask(&mut source, &[1, 2, 9], 9), Err(false));
        assert_eq!(ask(&mut source, &[1, 2, 3, 4, 5], 9), Err(false), "used up");
        source.commit(&tokens(&[1, 2, 3]));
        assert_eq!(source.shadow(&tokens(&[1, 2, 3])), Some((Token(4), Trust::Probability(0.5))));
        source.commit(&tokens(&[1, 2, 3, 9]));
        assert_eq!(source.shadow(&tokens(&[1, 2, 3])), None, "what is wrong once is given up");
    }

    #[test]
    fn good_drafts_become_long_even_where_tokens_are_dear() {
        let mut source = Mtp::new(None);
        for _ in 0..40 {
            source.promise(Position(2));
            source.handle_draft(draft(2, &[3, 4, 5, 6][..usize::from(source.wants(0.8))]));
            (3..=6).for_each(|len| source.commit(&tokens(&[1, 2, 3, 4, 5, 6][..len])));
        }
        assert_eq!(source.wants(0.8), USUAL_DRAFT);
    }

    #[test]
    fn drafts_are_as_long_as_pays() {
        let mut source = Mtp::new(None);
        let first = source.wants(0.25);
        let go = |right: usize, source: &mut Mtp| {
            for _ in 0..60 {
                let mut text = tokens(&[1, 2]);
                source.promise(Position(2));
                source.handle_draft(draft(2, &[3, 4, 5, 6][..usize::from(source.wants(0.25))]));
                for i in 0..4 {
                    text.push(Token(if i < right { 3 + i as i32 } else { 99 }));
                    source.commit(&text);
                }
            }
            source.wants(0.25)
        };
        assert_eq!(go(4, &mut source), 4);
        assert_eq!(go(2, &mut source), 2);
        assert_eq!(go(0, &mut source), 1);
        assert_eq!(go(4, &mut source), 4, "and longer ones are tried again");
        assert!((2..=4).contains(&first), "{first}");
        assert!(
            source.wants(0.999) < 4 && source.wants(0.01) == USUAL_DRAFT,
            "where tokens cost more, fewer pay"
        );
        assert_eq!(Mtp::new(Some(3)).wants(0.9), 3);
        assert_eq!(Mtp::new(Some(200)).wants(0.9), MAX_DRAFT);
    }
}
