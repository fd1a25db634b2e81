//! `draft`: what a model that runs elsewhere expects to follow.
//!
//! Its drafts come as events and wait here until they are asked for. A draft continues the text as it was sent in its
//! epoch; what was committed or sent since then either agrees with it or makes it useless. A later draft takes the place
//! of an earlier one, so it never changes what was sent, only what may be sent next.

use protocol::{Epoch, Token};

use crate::chain::trust_of;
use crate::proposer::{Answer, Ask, Block, Draft, Prior, Proposer, RUNS, Trust};

/// A draft comes with probabilities; without them a small model is right about two times in three.
const PRIOR: Prior = [0.35; RUNS.len() + 1];

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Drafted {
    /// The newest draft that nothing has contradicted.
    held: Option<Draft>,
    /// The newest epoch heard of.
    epoch: Epoch,
}

impl Drafted {
    /// A source that waits for its first draft.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// How many of the draft's tokens `text` holds already; none if it does not reach the draft or differs from it.
fn known(draft: &Draft, text: &[Token]) -> Option<usize> {
    let said = text.get(draft.base.0 as usize..)?;
    draft.block.tokens.starts_with(said).then_some(said.len())
}

impl Proposer for Drafted {
    fn name(&self) -> &'static str {
        "draft"
    }

    fn prior(&self) -> Prior {
        PRIOR
    }

    fn commit(&mut self, committed: &[Token]) {
        self.held.take_if(|draft| {
            let last = committed.len().wrapping_sub(1);
            let at = last.checked_sub(draft.base.0 as usize);
            at.is_some_and(|at| draft.block.tokens.get(at) != committed.last())
        });
    }

    fn shadow(&self, committed: &[Token]) -> Option<(Token, Trust)> {
        let draft = self.held.as_ref()?;
        let at = known(draft, committed)?;
        draft.block.tokens.get(at).map(|&token| (token, trust_of(&draft.block, at)))
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        self.epoch = self.epoch.max(ask.epoch);
        // What was sent in an older epoch is not what is sent now.
        self.held.take_if(|draft| draft.epoch < ask.epoch);
        let Some(draft) = &self.held else { return Answer::NotYet };
        let Some(at) = known(draft, ask.tokens) else { return Answer::NotYet };
        let Block { tokens, run, probabilities } = &draft.block;
        let end = tokens.len().min(at + n);
        if at == end {
            return Answer::NotYet;
        }
        Answer::Guesses(Block {
            tokens: tokens[at..end].to_vec(),
            run: run.saturating_add(at as u32),
            probabilities: probabilities.get(at..end).unwrap_or(&[]).to_vec(),
        })
    }

    fn handle_draft(&mut self, draft: Draft) {
        if draft.epoch >= self.epoch && !draft.block.tokens.is_empty() {
            self.epoch = draft.epoch;
            self.held = Some(draft);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Position;

    use super::*;

    fn tokens(ids: &[i32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    fn draft(epoch: u32, base: u32, ids: &[i32]) -> Draft {
        let block = Block { tokens: tokens(ids), run: 0, probabilities: vec![0.5; ids.len()] };
        Draft { epoch: Epoch(epoch), base: Position(base), block }
    }

    /// What it proposes after `text`, of which everything was sent.
    fn ask(source: &mut Drafted, epoch: u32, text: &[i32], n: usize) -> Vec<i32> {
        let text = tokens(text);
        let ask = Ask { tokens: &text, n_committed: 1, n_sent: text.len(), epoch: Epoch(epoch) };
        match source.propose(&ask, n) {
            Answer::Guesses(block) => {
                assert_eq!(block.tokens.len(), block.probabilities.len());
                block.tokens.iter().map(|token| token.0).collect()
            }
            Answer::NotYet => Vec::new(),
            Answer::Promised | Answer::Nothing => panic!("a drafter promises nothing and never gives up"),
        }
    }

    #[test]
    fn a_draft_is_given_out_as_far_as_it_agrees_with_what_was_sent() {
        let mut source = Drafted::new();
        assert_eq!(ask(&mut source, 0, &[1, 2], 4), []);
        source.handle_draft(draft(0, 2, &[3, 4, 5, 6]));
        assert_eq!(ask(&mut source, 0, &[1, 2], 2), [3, 4]);
        assert_eq!(ask(&mut source, 0, &[1, 2, 3, 4], 9), [5, 6], "it was sent as drafted");
        assert_eq!(ask(&mut source, 0, &[1, 2, 9], 9), [], "something else was sent");
        assert_eq!(ask(&mut source, 0, &[1], 9), [], "it does not say what comes before");
        assert_eq!(ask(&mut source, 0, &[1, 2, 3, 4, 5, 6], 9), [], "more is on its way");
        source.handle_draft(draft(0, 6, &[7]));
        assert_eq!(ask(&mut source, 0, &[1, 2, 3, 4, 5, 6], 9), [7]);
    }

    #[test]
    fn a_draft_of_a_text_that_was_contradicted_is_dropped() {
        let mut source = Drafted::new();
        source.handle_draft(draft(0, 2, &[3, 4]));
        source.commit(&tokens(&[1, 2, 3]));
        assert_eq!(ask(&mut source, 0, &[1, 2, 3], 9), [4]);
        source.commit(&tokens(&[1, 2, 3, 9]));
        assert_eq!(ask(&mut source, 0, &[1, 2, 3, 4], 9), []);
        source.handle_draft(draft(1, 4, &[5, 6]));
        assert_eq!(ask(&mut source, 1, &[1, 2, 3, 9], 9), [5, 6]);
        assert_eq!(ask(&mut source, 2, &[1, 2, 3, 9], 9), [], "sent in an older epoch");
        source.handle_draft(draft(1, 4, &[5, 6]));
        assert_eq!(ask(&mut source, 2, &[1, 2, 3, 9], 9), [], "and come too late");
    }

    #[test]
    fn what_was_drafted_and_not_sent_is_scored() {
        let mut source = Drafted::new();
        source.handle_draft(draft(0, 2, &[3, 4]));
        assert_eq!(source.shadow(&tokens(&[1])), None);
        assert_eq!(source.shadow(&tokens(&[1, 2])), Some((Token(3), Trust::Probability(0.5))));
        assert_eq!(source.shadow(&tokens(&[1, 2, 3])), Some((Token(4), Trust::Probability(0.5))));
        assert_eq!(source.shadow(&tokens(&[1, 2, 3, 4])), None);
    }
}
