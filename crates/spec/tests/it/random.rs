//! Any interleaving, any proposals: the tokens are those of decoding one after the other.

use std::collections::VecDeque;

use proptest::prelude::*;
use protocol::{End, Epoch, Position, Token, Verdict, Window};
use spec::{Pipeline, ProposalError, Setup, VerdictFault};

use crate::tail::{END, Model, SEQ, Tail, verdict};

/// Where proposals come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// None at all: plain decoding.
    Nothing,
    /// Always what the model will say.
    Right,
    /// Never what the model will say.
    Wrong,
    /// Whatever was rejected last, again and again.
    Rejected,
    /// The end token, always.
    End,
    /// Ids that no vocabulary holds.
    Unknown,
    /// Right, but for every third position.
    Mixed,
}

const SOURCES: [Source; 7] = [
    Source::Nothing,
    Source::Right,
    Source::Wrong,
    Source::Rejected,
    Source::End,
    Source::Unknown,
    Source::Mixed,
];

#[derive(Clone, Debug)]
struct Case {
    model: Model,
    prompt: Vec<Token>,
    limit: Position,
    sources: Vec<Source>,
    max_width: usize,
    max_in_flight: usize,
    /// Chooses what happens next, and which stale windows die on the way.
    choices: Vec<u8>,
}

fn case() -> impl Strategy<Value = Case> {
    let model = (2_u32..40, any::<u64>()).prop_map(|(n_vocab, seed)| Model { n_vocab, seed });
    let sources = prop::collection::vec(prop::sample::select(&SOURCES[..]), 1..4);
    let choices = prop::collection::vec(any::<u8>(), 1..200);
    (model, 1_usize..8, 1_u32..80, sources, 1_usize..=16, 1_usize..=16, choices).prop_map(
        |(model, n_prompt, room, sources, max_width, max_in_flight, choices)| Case {
            prompt: (0..n_prompt).map(|i| Token((i as u32 % model.n_vocab) as i32)).collect(),
            limit: Position(n_prompt as u32 + room),
            model,
            sources,
            max_width,
            max_in_flight,
            choices,
        },
    )
}

/// A front, a line and a tail; `step` lets one of them move.
struct Run {
    case: Case,
    pipeline: Pipeline,
    tail: Tail,
    line: VecDeque<Window>,
    verdicts: VecDeque<Verdict>,
    /// The newest epoch that a stage before the tail has heard of.
    heard: Epoch,
    rejected: Token,
    last_sent: Option<Window>,
    n_choices: usize,
    n_verdicts: usize,
}

impl Run {
    fn new(case: Case) -> Self {
        let setup = Setup {
            seq: SEQ,
            n_vocab: case.model.n_vocab,
            limit: case.limit,
            max_in_flight: case.max_in_flight,
        };
        Self {
            pipeline: Pipeline::new(setup, case.prompt.clone()),
            tail: Tail::new(case.model, &case.prompt, case.limit),
            line: VecDeque::new(),
            verdicts: VecDeque::new(),
            heard: Epoch(0),
            rejected: Token(1),
            last_sent: None,
            n_choices: 0,
            n_verdicts: 0,
            case,
        }
    }

    fn choose(&mut self, n: usize) -> usize {
        let choice = usize::from(self.case.choices[self.n_choices % self.case.choices.len()]);
        self.n_choices += 1;
        // Turn the list over on every pass, so that a short one is no cycle.
        (choice + self.n_choices / self.case.choices.len()) % n
    }

    fn proposal(&mut self, n: usize) -> Vec<Token> {
        let choice = self.choose(self.case.sources.len());
        let source = self.case.sources[choice];
        let n_vocab = self.case.model.n_vocab.cast_signed();
        let mut tokens = self.pipeline.optimistic().to_vec();
        let start = tokens.len();
        for i in 0..n {
            let right = self.case.model.next(&tokens);
            let wrong = Token((right.0 + 1) % n_vocab);
            tokens.push(match source {
                Source::Nothing => break,
                Source::Right => right,
                Source::Wrong => wrong,
                Source::Rejected => self.rejected,
                Source::End => END,
                Source::Unknown => Token(if i % 2 == 0 { n_vocab } else { -1 }),
                Source::Mixed if (start + i).is_multiple_of(3) => wrong,
                Source::Mixed => right,
            });
        }
        tokens.split_off(start)
    }

    /// Whether a window was sent.
    fn send(&mut self) -> bool {
        let width = 1 + self.choose(self.case.max_width);
        let n = self.choose(width + 2);
        let proposal = self.proposal(n);
        let before = self.pipeline.clone();
        let sent = match self.pipeline.next_window(width, &proposal) {
            Ok(sent) => sent,
            Err(ProposalError::UnknownToken { token, .. }) => {
                assert!(token.0 < 0 || token.0.cast_unsigned() >= self.case.model.n_vocab);
                assert_eq!(
                    format!("{before:?}"),
                    format!("{:?}", self.pipeline),
                    "a refusal changes nothing"
                );
                self.pipeline.next_window(width, &[]).expect("an empty proposal is never refused")
            }
        };
        let Some(window) = sent else { return false };
        assert!((1..=width).contains(&window.tokens.len()));
        assert!(window.base.0 as usize + window.tokens.len() < self.case.limit.0 as usize);
        match &self.last_sent {
            Some(last) if last.epoch == window.epoch => {
                assert_eq!(
                    window.base,
                    last.base.plus(last.tokens.len()),
                    "windows of an epoch tile positions"
                );
            }
            _ => assert_eq!(
                window.base.0 as usize,
                before.committed().len() - 1,
                "an epoch starts at the anchor"
            ),
        }
        assert_eq!(window.run_ahead, before.n_live() > 0);
        self.last_sent = Some(window.clone());
        self.line.push_back(window);
        assert!(self.pipeline.n_in_flight() < 2 * self.case.max_in_flight, "what is in flight is bounded");
        true
    }

    /// Whether the tail took a window, or a stage before it dropped a stale one. From the moment that a stage hears
    /// of an epoch it drops every older window: a hint that held for some of them only would show the tail a gap.
    fn compute(&mut self) -> bool {
        let Some(window) = self.line.pop_front() else { return false };
        if self.choose(3) == 0 {
            self.heard = self.pipeline.epoch();
        }
        if window.epoch >= self.heard {
            self.verdicts.extend(self.tail.handle(&window));
        }
        true
    }

    /// Whether a verdict came back.
    fn commit(&mut self) -> bool {
        let Some(verdict) = self.verdicts.pop_front() else { return false };
        let before = self.pipeline.clone();
        let commit = self.pipeline.handle_verdict(&verdict).expect("an honest tail is believed");
        let n_before = before.committed().len();
        assert_eq!(self.pipeline.committed()[n_before..], verdict.tokens);
        assert!(self.pipeline.committed().len() > n_before, "every verdict commits a token");
        assert!(commit.opened.is_none_or(|epoch| epoch == before.epoch().next()));
        if commit.opened.is_some() {
            self.rejected = before.optimistic()[self.pipeline.committed().len() - 1];
            assert_eq!(self.pipeline.optimistic(), self.pipeline.committed());
        }
        self.n_verdicts += 1;
        true
    }

    fn run_to_the_end(&mut self) {
        while self.pipeline.ended().is_none() {
            let first = self.choose(3);
            let moved = (0..3).any(|i| match (first + i) % 3 {
                0 => self.send(),
                1 => self.compute(),
                _ => self.commit(),
            });
            assert!(moved, "a sequence that has not ended can always go on");
            let n_generated = self.pipeline.committed().len() - self.case.prompt.len();
            assert!(self.n_verdicts <= n_generated);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn speculation_is_invisible(case in case()) {
        let (tokens, end) = case.model.sequential(&case.prompt, case.limit);
        let mut run = Run::new(case);
        run.run_to_the_end();
        prop_assert_eq!(run.pipeline.committed(), &tokens[..]);
        prop_assert_eq!(run.pipeline.ended(), Some(end));
        prop_assert!(run.pipeline.next_window(4, &[END]).expect("in the vocabulary").is_none());

        let stats = run.pipeline.stats();
        prop_assert_eq!(stats.windows, stats.live_windows + stats.stale_windows);
        prop_assert_eq!(stats.live_windows as usize, run.n_verdicts);
        prop_assert!(stats.accepted <= stats.proposed);
        if run.case.sources == [Source::Right] {
            prop_assert_eq!(run.pipeline.epoch().0, 0, "nothing contradicts right guesses");
            prop_assert!(end != End::Limit || stats.accepted == stats.proposed, "all are accepted, up to an end");
        }
        if run.case.sources == [Source::Wrong] {
            prop_assert_eq!(stats.accepted, 0);
        }
    }

    #[test]
    fn a_forged_verdict_is_refused_and_changes_nothing(case in case(), forgery in forgery()) {
        let mut run = Run::new(case);
        for _ in 0..forgery.after {
            let first = run.choose(3);
            let _ = (0..3).any(|i| match (first + i) % 3 {
                0 => run.send(),
                1 => run.compute(),
                _ => run.commit(),
            });
            if run.pipeline.ended().is_some() {
                break;
            }
        }
        let template = run.verdicts.front().cloned().or_else(|| {
            run.line.front().map(|window| verdict(window, &[END], Some(End::EndOfGeneration)))
        });
        let Some(mut forged) = template else { return Ok(()) };
        forgery.apply(&mut forged);
        let before = format!("{:?}", run.pipeline);
        let n_before = run.pipeline.committed().len();
        match run.pipeline.handle_verdict(&forged) {
            Ok(_) => {
                prop_assert_eq!(run.pipeline.committed().len(), n_before + forged.tokens.len());
                prop_assert!(!forged.tokens.is_empty());
                prop_assert!(run.pipeline.committed().len() <= run.case.limit.0 as usize);
            }
            Err(fault) => {
                prop_assert_eq!(before, format!("{:?}", run.pipeline));
                prop_assert_eq!(run.pipeline.ended().is_some(), matches!(fault, VerdictFault::AfterEnd { .. }));
            }
        }
    }
}

/// One thing changed in a verdict, after some steps.
#[derive(Clone, Debug)]
struct Forgery {
    after: usize,
    field: usize,
    value: i32,
}

fn forgery() -> impl Strategy<Value = Forgery> {
    (1_usize..60, 0_usize..6, -3_i32..50).prop_map(|(after, field, value)| Forgery { after, field, value })
}

impl Forgery {
    fn apply(&self, verdict: &mut Verdict) {
        let value = self.value.cast_unsigned();
        match self.field {
            0 => verdict.window.0 = verdict.window.0.wrapping_add(value),
            1 => verdict.epoch.0 = verdict.epoch.0.wrapping_add(value),
            2 => verdict.base.0 = verdict.base.0.wrapping_add(value),
            3 => verdict.tokens.push(Token(self.value)),
            4 => verdict.tokens.clear(),
            _ => {
                if let Some(last) = verdict.tokens.last_mut() {
                    *last = Token(self.value);
                }
                verdict.ended = [None, Some(End::Limit), Some(End::Grammar)][value as usize % 3];
            }
        }
    }
}
