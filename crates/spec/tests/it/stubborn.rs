//! Sources that mean no good: whatever they say, again and again, a sequence ends with its own text after a bounded
//! number of windows.

use std::time::Duration;

use proptest::prelude::*;
use protocol::{Position, Token};
use spec::{
    Answer, Ask, Block, Line, Pace, Prior, Proposer, RUNS, Reach, Setup, Speculate, Speculation, Start,
};

use crate::tail::{END, Model, SEQ, Tail};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// What it said first, for ever.
    Repeats,
    /// Never what the model will say.
    Wrong,
    /// The end of the text, always.
    Ends,
    /// Tokens that do not exist.
    Unknown,
}

const KINDS: [Kind; 4] = [Kind::Repeats, Kind::Wrong, Kind::Ends, Kind::Unknown];

#[derive(Debug)]
struct Stubborn {
    kind: Kind,
    model: Model,
    said: Vec<Token>,
}

impl Proposer for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    /// It praises itself.
    fn prior(&self) -> Prior {
        [0.0; RUNS.len() + 1]
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        let n_vocab = self.model.n_vocab.cast_signed();
        let tokens = match self.kind {
            Kind::Repeats => {
                let (model, said) = (self.model, &mut self.said);
                (said.len()..n).for_each(|i| said.push(Token((model.seed as i32 ^ i as i32) & 1)));
                said[..n].to_vec()
            }
            Kind::Wrong => {
                let mut tokens = ask.tokens.to_vec();
                (0..n).for_each(|_| tokens.push(Token((self.model.next(&tokens).0 + 1) % n_vocab)));
                tokens.split_off(ask.tokens.len())
            }
            Kind::Ends => vec![END; n],
            Kind::Unknown => vec![Token(n_vocab); n],
        };
        Answer::Guesses(Block { tokens, ..Block::default() })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_source_keeps_a_sequence_from_its_end(
        kind in prop::sample::select(&KINDS[..]),
        (n_vocab, seed) in (2_u32..30, any::<u64>()),
        room in 1_u32..60,
        width in prop::option::of(1_u32..=16),
        depth in prop::option::of(1_u32..=16),
    ) {
        let model = Model { n_vocab, seed };
        let prompt = vec![Token(0), Token(1)];
        let limit = Position(2 + room);
        let (text, end) = model.sequential(&prompt, limit);
        let reach = Reach { width, depth, ..Reach::default() };
        let max_in_flight = Speculation::max_in_flight();
        let start = Start {
            setup: Setup { seq: SEQ, n_vocab, limit, max_in_flight },
            prompt: prompt.clone(),
            prediction: None,
            own: vec![Box::new(Stubborn { kind, model, said: Vec::new() })],
        };
        let mut speculation = Speculation::new(start, &Speculate { reach, ..Speculate::off() });
        let mut tail = Tail::new(model, &prompt, limit);
        let (mut pace, mut now) = (Pace::new(3), Duration::ZERO);
        while speculation.ended().is_none() {
            let before = speculation.committed().len();
            let mut windows = Vec::new();
            while let Some(window) = speculation.next_window(Line { pace: &pace, n_live: 1 }, now) {
                prop_assert!(window.tokens.iter().all(|token| token.0.cast_unsigned() < n_vocab));
                windows.push(window);
            }
            prop_assert!(!windows.is_empty(), "one that has not ended can always go on");
            for verdict in windows.iter().filter_map(|window| tail.handle(window)) {
                now += Duration::from_millis(10);
                let line = Line { pace: &pace, n_live: 1 };
                let answered = speculation.handle_verdict(&verdict, line, now).expect("an honest tail");
                pace.observe(&verdict.timings, answered.under_way, answered.in_company);
            }
            prop_assert!(speculation.committed().len() > before, "a round commits a token");
        }
        prop_assert_eq!(speculation.committed(), &text[..]);
        prop_assert_eq!(speculation.ended(), Some(end));
        let (stats, n_generated) = (speculation.stats(), (text.len() - prompt.len()) as u32);
        prop_assert_eq!(stats.windows, stats.live_windows + stats.stale_windows);
        prop_assert!(stats.live_windows <= n_generated);
        // Each verdict leaves fewer stale windows behind than may be in flight.
        prop_assert!(stats.windows <= n_generated * depth.unwrap_or(max_in_flight as u32), "{:?}", stats);
        if kind == Kind::Unknown {
            prop_assert_eq!(stats.proposed, 0, "what does not exist is never sent");
        }
        if kind == Kind::Wrong {
            prop_assert_eq!(stats.accepted, 0);
        }
    }
}
