//! The tail's side of one sequence: which windows are live, and what is sampled from them.
//!
//! The tail keeps the position that it expects next, the token that it holds for it, and the oldest epoch that may
//! still be live. A window is live iff its base is that position and its first token is that token. The prompt's last
//! token is run as the first window's anchor, so before the first window the expected position is the one after the
//! chunks, and the token there, which only the front knows, is taken as given.
//!
//! Every sample is committed, the one that differs from the guess too: it is the correction. So sampler and grammar
//! advance exactly once per committed token and never roll back.

use protocol::{
    Chunk, Company, End, Epoch, FaultKind, Open, Position, PromptPart, Token, Verdict, Window, Work,
};

use crate::port::{Engine, EngineError, Sampled, Sampler, Slot, Want, Wish};
use crate::prompt::Prompt;

/// Samples one sequence.
pub(crate) struct Tail {
    sampler: Box<dyn Sampler>,
    limit: Position,
    ignore_eos: bool,
    /// What is wanted of the prompt, if anything is.
    prompt: Option<Prompt>,
    phase: Phase,
    /// Windows of older epochs are stale.
    min_epoch: Epoch,
}

#[derive(Clone, Copy)]
enum Phase {
    /// No window was sampled yet; the tokens below `next` are known.
    Prompt {
        next: Position,
    },
    Generating {
        expected: Position,
        held: Token,
        /// Of the last live window.
        epoch: Epoch,
    },
    Ended,
}

/// What to do with work that does not contradict what the tail holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Compute it.
    Live,
    /// Drop it: an older guess.
    Stale,
    /// Drop it: behind the sequence's end.
    PastEnd,
}

impl Tail {
    pub(crate) fn new(open: &Open, mut sampler: Box<dyn Sampler>) -> Self {
        open.history.iter().for_each(|&token| sampler.prompt(token));
        Self {
            sampler,
            limit: open.limit,
            ignore_eos: open.ignore_eos,
            prompt: Prompt::of(open),
            phase: Phase::Prompt { next: open.start },
            min_epoch: Epoch(0),
        }
    }

    /// Whether a chunk continues the prompt.
    pub(crate) fn look_at_chunk(&self, chunk: &Chunk) -> Result<Sight, FaultKind> {
        match self.phase {
            Phase::Prompt { next } => continues(chunk.base, next).map(|()| Sight::Live),
            Phase::Generating { .. } => {
                Err(FaultKind::Unsupported { what: "a prompt chunk after the first window".into() })
            }
            Phase::Ended => Ok(Sight::PastEnd),
        }
    }

    /// Whether a window is live. A contradiction by its first token makes its whole epoch stale.
    pub(crate) fn look_at_window(&mut self, window: &Window) -> Result<Sight, FaultKind> {
        let (base, token) = (window.base, window.tokens[0]);
        match self.phase {
            Phase::Ended => Ok(Sight::PastEnd),
            _ if window.epoch < self.min_epoch => Ok(Sight::Stale),
            Phase::Prompt { next } => continues(base, next).map(|()| Sight::Live),
            Phase::Generating { expected, held, .. } if base == expected && token == held => Ok(Sight::Live),
            Phase::Generating { expected, epoch, .. } if base == expected && window.epoch == epoch => {
                self.min_epoch = epoch.next();
                Ok(Sight::Stale)
            }
            Phase::Generating { expected, held, .. } => {
                Err(FaultKind::Diverged { base, token, expected, expected_token: held })
            }
        }
    }

    /// What the rows of live work must leave behind.
    pub(crate) fn want(&self, work: &Work) -> Want {
        match (work, &self.prompt) {
            (Work::Window(_), _) => Want::Logits,
            (Work::Chunk(chunk), Some(prompt)) => prompt.want(chunk),
            _ => Want::Nothing,
        }
    }

    /// What a live chunk that was computed, the last call's rows from `first_row` on, gives of what is wanted.
    pub(crate) fn read_chunk(
        &mut self,
        chunk: &Chunk,
        engine: &dyn Engine,
        first_row: usize,
    ) -> Result<Vec<PromptPart>, FaultKind> {
        self.prompt.as_mut().map_or(Ok(Vec::new()), |prompt| prompt.read(chunk, engine, first_row))
    }

    /// A live chunk was computed.
    pub(crate) fn pass_chunk(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|&token| self.sampler.prompt(token));
        if let Phase::Prompt { next } = &mut self.phase {
            *next = next.plus(tokens.len());
        }
    }

    /// Samples a live window that was computed: row `i` predicts position `base + i + 1`. The verdict has no timings.
    /// If one of its tokens cannot be sampled the sequence has to end: nothing of the window is reported.
    pub(crate) fn judge<'a>(
        &mut self,
        window: &Window,
        end_tokens: &[Token],
        logits: impl Fn(usize) -> &'a [f32],
    ) -> Result<Verdict, EngineError> {
        if matches!(self.phase, Phase::Prompt { .. }) {
            self.sampler.prompt(window.tokens[0]);
        }
        let mut verdict = Verdict {
            seq: window.seq,
            epoch: window.epoch,
            window: window.window,
            base: window.base,
            tokens: Vec::with_capacity(window.tokens.len()),
            ended: None,
            logprobs: Vec::new(),
            mu: None,
            timings: Vec::new(),
            company: Company::Alone,
            drafts: false,
        };
        for row in 0..window.tokens.len() {
            let position = window.base.plus(row + 1);
            let sampled = self.sampler.sample(position, logits(row))?;
            let token = sampled.token;
            verdict.tokens.push(token);
            verdict.mu = sampled.mu;
            verdict.ended = self.end_at(position, &sampled, end_tokens);
            verdict.logprobs.extend(sampled.logprobs);
            if verdict.ended.is_some() {
                self.phase = Phase::Ended;
                break;
            }
            self.phase = Phase::Generating { expected: position, held: token, epoch: window.epoch };
            if window.tokens.get(row + 1).is_some_and(|&guess| guess != token) {
                self.min_epoch = window.epoch.next();
                break;
            }
        }
        Ok(verdict)
    }

    /// The draft that a window wants behind its verdict, for an engine that drafts; the verdict announces it then.
    pub(crate) fn wish(&self, window: &Window, verdict: &Verdict, slot: Slot) -> Option<Wish> {
        let want = window.want_draft.as_ref()?;
        let Phase::Generating { expected: position, held: token, .. } = self.phase else { return None };
        if verdict.tokens.len() == window.tokens.len() && want.unless == Some(token) {
            return None;
        }
        // The sequence has no token at `limit`, and none is drafted for the position before: it would be the only one.
        let room = self.limit.0.saturating_sub(position.0 + 2) as usize;
        let n_tokens = usize::from(want.tokens).min(room);
        let sampler = (n_tokens > 0).then(|| self.sampler.drafting())??;
        Some(Wish { slot, token, position, n_tokens, sampler })
    }

    fn end_at(&self, position: Position, sampled: &Sampled, end_tokens: &[Token]) -> Option<End> {
        if !self.ignore_eos && end_tokens.binary_search(&sampled.token).is_ok() {
            Some(End::EndOfGeneration)
        } else if sampled.grammar_ended {
            Some(End::Grammar)
        } else if position.plus(1) >= self.limit {
            Some(End::Limit)
        } else {
            None
        }
    }
}

/// The prompt is heard once and in order, also where a stage could compute a part of it again.
fn continues(base: Position, next: Position) -> Result<(), FaultKind> {
    match base.cmp(&next) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(FaultKind::Gap { base, next }),
        std::cmp::Ordering::Less => Err(FaultKind::Rewind { base, oldest: next }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use protocol::{SamplerParams, SeqId, TokenLogprobs, WindowId};

    use super::*;

    /// Says the logits' first value, and notes what it heard. Token 90 ends its grammar.
    struct Script(Arc<Mutex<Vec<(char, i32)>>>);

    impl Sampler for Script {
        fn prompt(&mut self, token: Token) {
            self.0.lock().expect("no test panics here").push(('p', token.0));
        }

        fn sample(&mut self, position: Position, logits: &[f32]) -> Result<Sampled, EngineError> {
            let token = Token(logits[0] as i32);
            self.0.lock().expect("no test panics here").push(('s', token.0));
            let logprobs = Some(TokenLogprobs { logprob: -logits[0], top: Vec::new() });
            let mu = Some(position.0 as f32);
            Ok(Sampled { token, logprobs, mu, grammar_ended: token == Token(90) })
        }
    }

    struct Bench {
        tail: Tail,
        heard: Arc<Mutex<Vec<(char, i32)>>>,
    }

    impl Bench {
        /// History `1 2`, prompt `3`, then the anchor `4` at position 3.
        fn new(limit: u32, ignore_eos: bool) -> Self {
            let open = Open {
                seq: SeqId(1),
                start: Position(2),
                reuse: None,
                held: None,
                seed: 0,
                choice: 0,
                sampler: SamplerParams::default(),
                limit: Position(limit),
                ignore_eos,
                top_logprobs: Some(0),
                of_prompt: None,
                history: vec![Token(1), Token(2)],
            };
            let heard = Arc::default();
            let mut tail = Tail::new(&open, Box::new(Script(Arc::clone(&heard))));
            tail.pass_chunk(&[Token(3)]);
            Self { tail, heard }
        }

        fn look(&mut self, epoch: u32, base: u32, tokens: &[i32]) -> Result<Sight, FaultKind> {
            self.tail.look_at_window(&window(epoch, base, tokens))
        }

        /// The model says `says`, row by row.
        fn judge(&mut self, epoch: u32, base: u32, tokens: &[i32], says: &[i32]) -> Verdict {
            assert_eq!(self.look(epoch, base, tokens), Ok(Sight::Live));
            let logits: Vec<[f32; 1]> = says.iter().map(|&token| [token as f32]).collect();
            let end_tokens = [Token(80), Token(81)];
            let judged = self.tail.judge(&window(epoch, base, tokens), &end_tokens, |row| &logits[row]);
            judged.expect("the script goes on")
        }
    }

    fn window(epoch: u32, base: u32, tokens: &[i32]) -> Window {
        Window {
            seq: SeqId(1),
            epoch: Epoch(epoch),
            window: WindowId(0),
            base: Position(base),
            tokens: tokens.iter().copied().map(Token).collect(),
            run_ahead: false,
            want_draft: None,
        }
    }

    fn ids(verdict: &Verdict) -> Vec<i32> {
        verdict.tokens.iter().map(|token| token.0).collect()
    }

    #[test]
    fn every_token_is_heard_once_and_in_order() {
        let mut bench = Bench::new(100, false);
        bench.judge(0, 3, &[4, 5, 6], &[5, 7, 99]);
        bench.judge(1, 5, &[7], &[8]);
        bench.judge(1, 6, &[8, 9], &[9, 10]);
        let heard: String =
            bench.heard.lock().expect("no panic").iter().map(|(kind, id)| format!("{kind}{id} ")).collect();
        assert_eq!(heard, "p1 p2 p3 p4 s5 s7 s8 s9 s10 ");
    }

    #[test]
    fn sampling_stops_after_the_first_sample_that_contradicts() {
        let verdict = Bench::new(100, false).judge(0, 3, &[4, 5, 6, 7], &[5, 9, 9, 9]);
        assert_eq!((ids(&verdict), verdict.ended, verdict.mu), (vec![5, 9], None, Some(5.0)));
        let logprobs: Vec<f32> = verdict.logprobs.iter().map(|logprob| logprob.logprob).collect();
        assert_eq!(logprobs, [-5.0, -9.0]);
    }

    #[test]
    fn a_window_that_is_confirmed_whole_yields_a_token_more() {
        let mut bench = Bench::new(100, false);
        assert_eq!(ids(&bench.judge(0, 3, &[4, 5, 6], &[5, 6, 7])), [5, 6, 7]);
        assert_eq!(bench.look(0, 6, &[7, 1]), Ok(Sight::Live), "the next one goes on in the same epoch");
    }

    #[test]
    fn a_contradiction_makes_the_rest_of_its_epoch_stale() {
        let mut inside = Bench::new(100, false);
        inside.judge(0, 3, &[4, 5, 6], &[5, 9, 9]);
        assert_eq!(inside.look(0, 6, &[7]), Ok(Sight::Stale));
        assert_eq!(inside.look(0, 5, &[9]), Ok(Sight::Stale), "even at the right place");
        assert_eq!(inside.look(1, 5, &[9]), Ok(Sight::Live));

        let mut by_the_next = Bench::new(100, false);
        by_the_next.judge(0, 3, &[4, 5], &[5, 6]);
        assert_eq!(by_the_next.look(0, 5, &[7]), Ok(Sight::Stale));
        assert_eq!(by_the_next.look(0, 6, &[8]), Ok(Sight::Stale));
        assert_eq!(by_the_next.look(1, 5, &[6]), Ok(Sight::Live));
    }

    #[test]
    fn what_is_neither_live_nor_stale_has_diverged() {
        let mut bench = Bench::new(100, false);
        bench.judge(0, 3, &[4, 5], &[5, 6]);
        for (epoch, base, token) in [(0, 6, 6), (0, 4, 5), (1, 5, 7), (1, 4, 6)] {
            let diverged = FaultKind::Diverged {
                base: Position(base),
                token: Token(token),
                expected: Position(5),
                expected_token: Token(6),
            };
            assert_eq!(bench.look(epoch, base, &[token]), Err(diverged));
        }
    }

    #[test]
    fn a_sequence_ends_at_an_end_token_its_grammar_or_its_limit_and_hears_nothing_more() {
        let cases = [
            (100, false, [81, 9], vec![81], Some(End::EndOfGeneration)),
            (100, true, [81, 9], vec![81, 9], None),
            (100, false, [90, 9], vec![90], Some(End::Grammar)),
            (5, false, [81, 9], vec![81], Some(End::EndOfGeneration)),
            (5, true, [81, 9], vec![81], Some(End::Limit)),
            (6, true, [81, 9], vec![81, 9], Some(End::Limit)),
            (1, true, [5, 9], vec![5], Some(End::Limit)),
        ];
        for (limit, ignore_eos, says, tokens, ended) in cases {
            let mut bench = Bench::new(limit, ignore_eos);
            let verdict = bench.judge(0, 3, &[4, says[0]], &says);
            assert_eq!((ids(&verdict), verdict.ended), (tokens, ended), "limit {limit}");
            if ended.is_some() {
                assert_eq!(bench.look(0, 5, &[9]), Ok(Sight::PastEnd));
                assert_eq!(bench.look(7, 50, &[9]), Ok(Sight::PastEnd));
            }
        }
    }
}
