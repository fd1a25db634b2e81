//! Guesses that come late, from elsewhere, with probabilities: by an event (a drafter on a thread) or with a verdict
//! (the tail's own heads). Whatever comes and whenever, the tokens are those of sequential decoding.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use protocol::{Company, Epoch, Position, StageTiming, TailDraft, Token, Verdict, Window};
use spec::{Block, Draft, Drafted, Line, Pace, Reach, Setup, Source, Sources, Speculate, Speculation, Start};

use crate::tail::{Model, SEQ, Tail};

#[derive(Clone, Debug)]
struct Case {
    model: Model,
    n_prompt: usize,
    room: u32,
    /// Percent of a draft's tokens that are right.
    right: u8,
    with_probabilities: bool,
    width: Option<u32>,
    depth: Option<u32>,
    with_suffix: bool,
    /// Whether the tail drafts too, and how many tokens if that is fixed.
    with_tail: bool,
    draft_len: Option<u8>,
    choices: Vec<u8>,
}

fn case() -> impl Strategy<Value = Case> {
    let model = (2_u32..30, any::<u64>()).prop_map(|(n_vocab, seed)| Model { n_vocab, seed });
    let reach = (prop::option::of(1_u32..=16), prop::option::of(1_u32..=16));
    let sources = (any::<bool>(), any::<bool>(), prop::option::of(1_u8..=spec::MAX_DRAFT));
    let choices = prop::collection::vec(any::<u8>(), 1..100);
    (model, 1_usize..8, 1_u32..60, 0_u8..=100, any::<bool>(), reach, sources, choices).prop_map(
        |(model, n_prompt, room, right, with_probabilities, (width, depth), sources, choices)| {
            let (with_suffix, with_tail, draft_len) = sources;
            Case {
                model,
                n_prompt,
                room,
                right,
                with_probabilities,
                width,
                depth,
                with_suffix,
                with_tail,
                draft_len,
                choices,
            }
        },
    )
}

struct Run {
    case: Case,
    pace: Pace,
    speculation: Speculation,
    /// What is sent, to know what a drafter would continue.
    optimistic: Vec<Token>,
    /// The same, from what a drafter is told.
    told: Vec<Token>,
    tail: Tail,
    line: VecDeque<Window>,
    verdicts: VecDeque<(Verdict, Option<TailDraft>)>,
    /// What the last verdict has announced and has not come.
    announced: Option<TailDraft>,
    now: Duration,
    n_choices: usize,
}

impl Run {
    fn new(case: Case) -> Self {
        let prompt: Vec<_> =
            (0..case.n_prompt).map(|i| Token((i as u32 % case.model.n_vocab) as i32)).collect();
        let limit = Position(case.n_prompt as u32 + case.room);
        let max_in_flight = Speculation::max_in_flight();
        let setup = Setup { seq: SEQ, n_vocab: case.model.n_vocab, limit, max_in_flight };
        let sources = match (case.with_tail, case.with_suffix) {
            (true, true) => Sources::List(vec![Source::Mtp, Source::Suffix, Source::Unigram]),
            (true, false) => Sources::List(vec![Source::Mtp]),
            (false, true) => Sources::Auto,
            (false, false) => Sources::Off,
        };
        let reach = Reach { width: case.width, depth: case.depth, ..Reach::default() };
        let start =
            Start { setup, prompt: prompt.clone(), prediction: None, own: vec![Box::new(Drafted::new())] };
        Self {
            speculation: Speculation::new(start, &Speculate { sources, reach, draft_len: case.draft_len }),
            pace: Pace::new(3),
            tail: Tail::new(case.model, &prompt, limit),
            told: prompt.clone(),
            optimistic: prompt,
            line: VecDeque::new(),
            verdicts: VecDeque::new(),
            announced: None,
            now: Duration::ZERO,
            n_choices: 0,
            case,
        }
    }

    fn choose(&mut self, n: usize) -> usize {
        let choice = usize::from(self.case.choices[self.n_choices % self.case.choices.len()]);
        self.n_choices += 1;
        (choice + self.n_choices / self.case.choices.len()) % n
    }

    fn send(&mut self) -> bool {
        let line = Line { pace: &self.pace, n_live: 1 };
        let Some(window) = self.speculation.next_window(line, self.now) else { return false };
        self.optimistic.truncate(window.base.0 as usize);
        self.optimistic.extend(&window.tokens);
        self.line.push_back(window);
        true
    }

    /// A drafter hears of the text, and then knows it.
    fn tell(&mut self) {
        if let Some(change) = self.speculation.text_change() {
            self.told.truncate(change.from.0 as usize);
            assert_eq!(self.told.len(), change.from.0 as usize, "nothing is left out");
            self.told.extend(&change.tokens);
            assert_eq!((change.epoch, &self.told), (self.speculation.epoch(), &self.optimistic));
            assert_eq!(self.speculation.text_change(), None, "nothing is told twice");
        }
    }

    /// A draft that continues what was sent comes, perhaps when that is out of date.
    fn draft(&mut self) {
        let n_tokens = 1 + self.choose(8);
        let base = Position(self.optimistic.len() as u32);
        let (tokens, probabilities) = self.guessed(self.optimistic.clone(), n_tokens);
        let probabilities = if self.case.with_probabilities { probabilities } else { Vec::new() };
        let block = Block { tokens, run: 0, probabilities };
        let epoch = Epoch(self.speculation.epoch().0.saturating_sub((self.choose(4) == 0).into()));
        let line = Line { pace: &self.pace, n_live: 1 };
        assert!(self.speculation.handle_draft("draft", Draft { epoch, base, block }, line));
        let nothing = Draft { epoch, base, block: Block::default() };
        assert!(!self.speculation.handle_draft("nobody", nothing, line));
    }

    /// What somebody expects behind a text, some of it wrong, and how sure they are.
    fn guessed(&mut self, mut text: Vec<Token>, n_tokens: usize) -> (Vec<Token>, Vec<f32>) {
        let len = text.len();
        let mut probabilities = Vec::new();
        for _ in 0..n_tokens {
            let truth = self.case.model.next(&text);
            let is_right = self.choose(100) < usize::from(self.case.right);
            text.push(if is_right { truth } else { Token((truth.0 + 1) % self.case.model.n_vocab as i32) });
            probabilities.push(if is_right { 0.9 } else { 0.2 });
        }
        (text.split_off(len), probabilities)
    }

    /// The tail computes a window, and drafts behind it if it shall.
    fn compute(&mut self) -> bool {
        let Some(window) = self.line.pop_front() else { return false };
        let Some(mut verdict) = self.tail.handle(&window) else { return true };
        let last = verdict.tokens.last().copied();
        let wanted = window.want_draft.filter(|want| verdict.ended.is_none() && want.unless != last);
        verdict.drafts = wanted.is_some();
        let draft = wanted.map(|want| {
            let text = self.tail.tokens().to_vec();
            let base = Position(text.len() as u32);
            // One that failed is empty.
            let n_tokens = self.choose(usize::from(want.tokens) + 1);
            let (tokens, probabilities) = self.guessed(text, n_tokens);
            let timing = StageTiming { queue_us: 0, compute_us: 3000, batch_rows: n_tokens as u32 };
            TailDraft { seq: SEQ, base, tokens, probabilities, timing, company: Company::Alone }
        });
        self.verdicts.push_back((verdict, draft));
        true
    }

    /// The draft that was announced comes, before the next verdict.
    fn arrive(&mut self) -> bool {
        let Some(draft) = self.announced.take() else { return false };
        self.pace.observe_draft(draft.tokens.len(), &draft.timing, self.speculation.has_waited(self.now));
        let line = Line { pace: &self.pace, n_live: 1 };
        assert_eq!(self.speculation.handle_tail_draft(draft, line), Ok(true));
        true
    }

    fn commit(&mut self) -> bool {
        if self.announced.is_some() {
            return self.arrive();
        }
        let Some((verdict, draft)) = self.verdicts.pop_front() else { return false };
        self.announced = draft;
        self.now += Duration::from_millis(10);
        let line = Line { pace: &self.pace, n_live: 1 };
        let answered = self.speculation.handle_verdict(&verdict, line, self.now).expect("an honest tail");
        self.pace.observe(&verdict.timings, answered.under_way, answered.in_company);
        let committed = self.speculation.committed();
        if answered.commit.opened.is_some() || self.optimistic.len() < committed.len() {
            self.optimistic = committed.to_vec();
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn late_drafts_are_invisible(case in case()) {
        let mut run = Run::new(case);
        let limit = Position(run.case.n_prompt as u32 + run.case.room);
        let (tokens, end) = run.case.model.sequential(&run.optimistic, limit);
        while run.speculation.ended().is_none() {
            if run.choose(3) == 0 {
                run.draft();
            }
            if run.choose(4) == 0 {
                run.arrive();
            }
            if run.choose(2) == 0 {
                run.tell();
            }
            let first = run.choose(3);
            let moved = (0..3).any(|i| match (first + i) % 3 {
                0 => run.send(),
                1 => run.compute(),
                _ => run.commit(),
            });
            prop_assert!(moved, "a sequence that has not ended can always go on");
        }
        prop_assert_eq!(run.speculation.committed(), &tokens[..]);
        prop_assert_eq!(run.speculation.ended(), Some(end));
        let (stats, tally) = (run.speculation.stats(), run.speculation.tally());
        let by_source = tally.sources().map(|s| (s.guesses.proposed, s.guesses.accepted));
        let by_source = by_source.fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
        let by_depth = tally.depths.iter().fold((0, 0), |sum, n| (sum.0 + n.proposed, sum.1 + n.accepted));
        prop_assert_eq!(by_source, (stats.proposed.into(), stats.accepted.into()));
        prop_assert_eq!(by_depth, by_source);
    }
}
