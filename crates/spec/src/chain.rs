//! The sources of one sequence in their order, and how well each of them does.
//!
//! Owns: whom to ask, and the score of every source on every committed token, sent or not. A source that says nothing
//! (yet) is passed over; where its guesses end, the others go on.

use protocol::{Epoch, Position, StageTiming, Token};

use crate::agreement::Agreement;
use crate::proposer::{Answer, Ask, Block, Draft, Proposer, Trust};
use crate::tally::{DraftTally, MAX_SOURCES, Tally};

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first source that has any guess.
    Given,
    /// The source whose guesses should last longest, by what was measured.
    Best,
}

/// One guess and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess {
    pub(crate) token: Token,
    pub(crate) tag: Tag,
}

/// Where a guess comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub(crate) source: usize,
    trust: Trust,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Chain {
    links: Vec<Link>,
    order: Order,
    n_vocab: u32,
    /// When it was asked last, the first to be heard promised more.
    waits: bool,
    pub(crate) tally: Tally,
}

#[derive(Debug)]
struct Link {
    source: Box<dyn Proposer>,
    agreement: Agreement,
    /// It proposed what is no token: it does not speak this model's language.
    is_muted: bool,
    /// When it was asked last it said that more would come.
    is_coming: bool,
    /// And that this is certain.
    promises: bool,
}

impl Chain {
    /// Sources beyond [`MAX_SOURCES`] are left out.
    pub(crate) fn new(sources: Vec<Box<dyn Proposer>>, order: Order, n_vocab: u32, prompt: &[Token]) -> Self {
        let mut tally = Tally::default();
        let mut links = Vec::new();
        for mut source in sources.into_iter().take(MAX_SOURCES) {
            source.begin(prompt);
            tally.source(links.len()).name = source.name();
            let agreement = Agreement::new(source.prior());
            links.push(Link { source, agreement, is_muted: false, is_coming: false, promises: false });
        }
        Self { links, order, n_vocab, waits: false, tally }
    }

    /// Takes the last `n` sources out.
    pub(crate) fn take_last(&mut self, n: usize) -> Vec<Box<dyn Proposer>> {
        let links = self.links.split_off(self.links.len().saturating_sub(n));
        links.into_iter().map(|link| link.source).collect()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// One more token is certain: the last of `committed`. Scores what every source would have said.
    pub(crate) fn commit(&mut self, committed: &[Token]) {
        let Some((&token, before)) = committed.split_last() else { return };
        for (i, link) in self.links.iter_mut().enumerate() {
            match link.source.shadow(before) {
                Some((guess, trust)) => {
                    link.agreement.observe(trust, guess == token);
                    let tally = self.tally.source(i);
                    tally.scored += 1;
                    tally.right += u64::from(guess == token);
                }
                None => link.agreement.fade(),
            }
            link.source.commit(committed);
        }
        self.note_drafts();
    }

    /// A guess was sent, so far ahead.
    pub(crate) fn sent(&mut self, tag: Tag, depth: usize) {
        self.tally.sent(tag.source, depth);
        self.links[tag.source].source.sent(1);
    }

    /// A guess that was sent has been judged. `committed` are the tokens before it.
    pub(crate) fn judged(&mut self, tag: Tag, committed: &[Token], was_right: bool) {
        let link = &mut self.links[tag.source];
        // The others are scored by their shadow, on this token too.
        if link.source.shadow(committed).is_none() {
            link.agreement.observe(tag.trust, was_right);
            let tally = self.tally.source(tag.source);
            tally.scored += 1;
            tally.right += u64::from(was_right);
        }
    }

    /// Up to `n` guesses of what follows `text`, of which `n_committed` tokens are committed and the others were sent.
    /// The text is as before afterwards.
    pub(crate) fn propose(
        &mut self,
        text: &mut Vec<Token>,
        n_committed: usize,
        epoch: Epoch,
        n: usize,
    ) -> Vec<Guess> {
        self.propose_but(None, text, (n_committed, epoch), n)
    }

    /// The same without one of the sources.
    pub(crate) fn propose_but(
        &mut self,
        but: Option<usize>,
        text: &mut Vec<Token>,
        (n_committed, epoch): (usize, Epoch),
        n: usize,
    ) -> Vec<Guess> {
        let n_sent = text.len();
        self.waits = false;
        let mut guesses = Vec::new();
        while guesses.len() < n {
            let ask = Ask { tokens: text, n_committed, n_sent, epoch };
            let Some((source, block)) = self.ask(&ask, n - guesses.len(), but) else { break };
            text.extend(&block.tokens);
            guesses.extend(
                block
                    .tokens
                    .iter()
                    .enumerate()
                    .map(|(i, &token)| Guess { token, tag: Tag { source, trust: trust_of(&block, i) } }),
            );
        }
        text.truncate(n_sent);
        guesses
    }

    /// The probability that a guess is wrong when all before it are right.
    pub(crate) fn hazard(&self, tag: Tag) -> f64 {
        self.links[tag.source].agreement.hazard(tag.trust)
    }

    /// Whether the source said, when it was asked last, that more of its guesses would come.
    pub(crate) fn is_coming(&self, source: usize) -> bool {
        self.links[source].is_coming
    }

    /// Whether the source that goes first has promised guesses of what follows the text that was asked about last. Others
    /// may have some already.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Tokens that the tail shall draft behind the next verdict, where one more has to come true with the probability `worth`
    /// at least.
    pub(crate) fn wants(&self, worth: f64) -> u8 {
        self.links
            .iter()
            .filter(|link| !link.is_muted)
            .map(|link| link.source.wants(worth))
            .max()
            .unwrap_or(0)
    }

    /// The source that the tail drafts for, if there is one.
    pub(crate) fn drafted_by_tail(&self) -> Option<usize> {
        self.links.iter().position(|link| link.source.drafts().is_some())
    }

    /// The tail has announced a draft that begins there.
    pub(crate) fn promise(&mut self, base: Position) {
        self.links
            .iter_mut()
            .filter(|link| link.source.drafts().is_some())
            .for_each(|link| link.source.promise(base));
    }

    /// A draft for the source of that name has come; whether there is such a source.
    pub(crate) fn handle_draft(&mut self, name: &str, draft: Draft) -> bool {
        let Some(at) = self.links.iter().position(|link| link.source.name() == name) else { return false };
        self.links[at].source.handle_draft(draft);
        true
    }

    /// A draft of the tail's own has come for that source.
    pub(crate) fn handle_tail_draft(&mut self, source: usize, draft: Draft, timing: &StageTiming) {
        self.links[source].source.handle_draft(draft);
        self.tally.source(source).drafts.time_us += u64::from(timing.compute_us);
        self.note_drafts();
    }

    fn note_drafts(&mut self) {
        for (i, link) in self.links.iter().enumerate() {
            if let Some(drafts) = link.source.drafts() {
                let known = &mut self.tally.source(i).drafts;
                *known = DraftTally { time_us: known.time_us, ..*drafts };
            }
        }
    }

    fn ask(&mut self, ask: &Ask<'_>, n: usize, but: Option<usize>) -> Option<(usize, Block)> {
        let mut best: Option<(f64, usize, Block)> = None;
        for source in (0..self.links.len()).filter(|&source| Some(source) != but) {
            let Some(block) = self.ask_one(source, ask, n) else {
                self.waits |= self.links[source].promises && ask.tokens.len() == ask.n_sent;
                continue;
            };
            if self.order == Order::Given {
                return Some((source, block));
            }
            let lasts = self.lasts(source, &block);
            if best.as_ref().is_none_or(|(longest, ..)| lasts > *longest) {
                best = Some((lasts, source, block));
            }
        }
        best.map(|(_, source, block)| (source, block))
    }

    /// What one source says, up to the first that is no token.
    fn ask_one(&mut self, source: usize, ask: &Ask<'_>, n: usize) -> Option<Block> {
        let link = &mut self.links[source];
        if link.is_muted {
            return None;
        }
        let answer = link.source.propose(ask, n);
        link.promises = answer == Answer::Promised;
        link.is_coming = link.promises || answer == Answer::NotYet;
        let Answer::Guesses(mut block) = answer else { return None };
        block.tokens.truncate(n);
        let is_token = |token: &Token| u32::try_from(token.0).is_ok_and(|id| id < self.n_vocab);
        let n_known = block.tokens.iter().take_while(|token| is_token(token)).count();
        if n_known < block.tokens.len() {
            link.is_muted = true;
            self.tally.source(source).unknown += (block.tokens.len() - n_known) as u64;
            block.tokens.truncate(n_known);
        }
        for (i, other) in self.links.iter_mut().enumerate() {
            if i != source && !block.tokens.is_empty() {
                let n_allowed = other.source.allows(ask, &block.tokens);
                block.tokens.truncate(n_allowed);
            }
        }
        (!block.tokens.is_empty()).then_some(block)
    }

    /// How many of a block's guesses should be right.
    fn lasts(&self, source: usize, block: &Block) -> f64 {
        let mut alive = 1.0;
        (0..block.tokens.len())
            .map(|i| {
                alive *= 1.0 - self.hazard(Tag { source, trust: trust_of(block, i) });
                alive
            })
            .sum()
    }
}

/// What a source thinks of guess number `at` of its block.
pub(crate) fn trust_of(block: &Block, at: usize) -> Trust {
    match block.probabilities.get(at) {
        Some(&probability) => Trust::Probability(probability),
        None => Trust::Run(block.run.saturating_add(at as u32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtp::Mtp;
    use crate::proposer::{Prior, RUNS};
    use crate::suffix::Suffix;

    /// Always says the same.
    #[derive(Debug)]
    struct Says(&'static str, Vec<i32>);

    /// Proposes nothing, and knows that only tokens below this can come true.
    #[derive(Debug)]
    struct Below(i32);

    impl Proposer for Says {
        fn name(&self) -> &'static str {
            self.0
        }

        fn prior(&self) -> Prior {
            [0.1; RUNS.len() + 1]
        }

        fn propose(&mut self, _ask: &Ask<'_>, n: usize) -> Answer {
            let tokens = self.1.iter().take(n).copied().map(Token).collect();
            Answer::Guesses(Block { tokens, ..Block::default() })
        }
    }

    impl Proposer for Below {
        fn name(&self) -> &'static str {
            "below"
        }

        fn prior(&self) -> Prior {
            [0.1; RUNS.len() + 1]
        }

        fn propose(&mut self, _ask: &Ask<'_>, _n: usize) -> Answer {
            Answer::Nothing
        }

        fn allows(&mut self, _ask: &Ask<'_>, guesses: &[Token]) -> usize {
            guesses.iter().take_while(|token| token.0 < self.0).count()
        }
    }

    fn proposed(order: Order) -> Vec<i32> {
        let sources: Vec<Box<dyn Proposer>> = vec![
            Box::new(Says("wild", vec![9, 1])),
            Box::new(Below(5)),
            Box::new(Says("tame", vec![3, 7, 2])),
        ];
        let mut chain = Chain::new(sources, order, 100, &[Token(0)]);
        let guesses = chain.propose(&mut vec![Token(0)], 1, Epoch(0), 3);
        guesses.iter().map(|guess| guess.token.0).collect()
    }

    #[test]
    fn what_one_source_knows_to_be_wrong_is_not_guessed_by_another() {
        for order in [Order::Given, Order::Best] {
            assert_eq!(proposed(order), [3, 3, 3], "{order:?}");
        }
    }

    const TEXT: [Token; 6] = [Token(3), Token(4), Token(5), Token(6), Token(1), Token(2)];

    /// After [`TEXT`] the tail has drafted 3, 4.
    fn with_a_draft(order: Order, others: Vec<Box<dyn Proposer>>) -> Chain {
        let mut sources: Vec<Box<dyn Proposer>> = vec![Box::new(Mtp::new(None))];
        sources.extend(others);
        let mut chain = Chain::new(sources, order, 100, &TEXT);
        let base = Position(TEXT.len() as u32);
        chain.promise(base);
        said(&mut chain, 5);
        assert!(chain.waits());
        let block = Block { tokens: vec![Token(3), Token(4)], run: 0, probabilities: vec![0.9, 0.8] };
        let source = chain.drafted_by_tail().expect("it has the source");
        chain.handle_tail_draft(source, Draft { epoch: Epoch(0), base, block }, &StageTiming::default());
        chain
    }

    /// Tokens behind [`TEXT`], and who said them.
    fn said(chain: &mut Chain, n: usize) -> Vec<(i32, usize)> {
        let guesses = chain.propose(&mut TEXT.to_vec(), TEXT.len(), Epoch(0), n);
        guesses.iter().map(|guess| (guess.token.0, guess.tag.source)).collect()
    }

    #[test]
    fn a_draft_of_the_tail_goes_first_and_what_knows_the_text_goes_on_behind_it() {
        for order in [Order::Given, Order::Best] {
            let mut chain = with_a_draft(order, vec![Box::new(Suffix::new())]);
            assert_eq!(said(&mut chain, 4), [(3, 0), (4, 0), (5, 1), (6, 1)], "{order:?}");
        }
    }

    #[test]
    fn a_draft_that_cannot_come_true_is_neither_sent_nor_waited_for() {
        let mut chain = with_a_draft(Order::Given, vec![Box::new(Below(3)), Box::new(Says("tame", vec![2]))]);
        assert_eq!(said(&mut chain, 1), [(2, 2)]);
        assert!(!chain.waits());
        let mut chain = with_a_draft(Order::Given, vec![Box::new(Below(4))]);
        assert_eq!(said(&mut chain, 4), [(3, 0)], "only its second token is wrong");
    }
}
