//! What a prompt itself gives: the same, however it is cut, over how many stages it goes, and whatever goes on beside it.

use protocol::{
    Chunk, FaultKind, Found, Frame, OfPrompt, Open, Pooling, Position, Report, SeqId, Token, TokenLogprobs,
    Work,
};
use stage::{Output, Rewind, logprobs};

use crate::front::{Front, Manner};
use crate::line::{Line, Stage};
use crate::toy::{Rng, Toy, WIDTH, logits, open, rows};

const POOLINGS: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::First, Pooling::Last];

/// What was told of a prompt, put together.
#[derive(Debug, Default, PartialEq)]
struct Told {
    logprobs: Vec<TokenLogprobs>,
    values: Vec<f32>,
}

impl Told {
    /// A part must go on where the last one ended.
    fn hear(&mut self, base: Position, found: Found) {
        match found {
            Found::Logprobs(logprobs) => {
                assert_eq!(base.0 as usize, self.logprobs.len() + 1);
                self.logprobs.extend(logprobs);
            }
            Found::Rows(rows) => {
                assert_eq!((base.0 as usize, rows.width as usize), (self.values.len() / WIDTH, WIDTH));
                self.values.extend(rows.values);
            }
        }
    }
}

/// What should be told.
fn truth(text: &[Token], wanted: OfPrompt) -> Told {
    let rows = rows(text);
    let mut told = Told::default();
    match wanted {
        OfPrompt::Logprobs { top } => {
            let next = rows.iter().zip(&text[1..]);
            told.logprobs = next.map(|(&row, &token)| logprobs::of(&logits(row), token, top)).collect();
        }
        OfPrompt::Embedding(Pooling::None) => told.values = rows.concat(),
        OfPrompt::Embedding(Pooling::First) => told.values = rows[0].to_vec(),
        OfPrompt::Embedding(Pooling::Last) => told.values = rows[rows.len() - 1].to_vec(),
        OfPrompt::Embedding(Pooling::Mean) => {
            let sum = |at: usize| rows.iter().map(|row| f64::from(row[at])).sum::<f64>();
            told.values = (0..WIDTH).map(|at| (sum(at) / rows.len() as f64) as f32).collect();
        }
    }
    told
}

fn wishes() -> Vec<OfPrompt> {
    let embeddings = POOLINGS.map(OfPrompt::Embedding);
    embeddings.into_iter().chain([0, 3].map(|top| OfPrompt::Logprobs { top })).collect()
}

/// A sequence of which something is wanted, and its frames: the prompt whole, in random chunks.
fn frames(seq: SeqId, text: &[Token], wanted: OfPrompt, most: usize, rng: &mut Rng) -> Vec<Frame> {
    let of_prompt = Some(wanted);
    let open = Open { limit: Position(text.len() as u32), of_prompt, ..open(seq.0) };
    let mut frames = vec![Frame::new(Work::Open(Box::new(open)))];
    let mut at = 0;
    while at < text.len() {
        let end = (at + 1 + rng.below(most)).min(text.len());
        let follows = text.get(end).copied().filter(|_| matches!(wanted, OfPrompt::Logprobs { .. }));
        let chunk = Chunk { seq, base: Position(at as u32), tokens: text[at..end].to_vec(), follows };
        frames.push(Frame::new(Work::Chunk(chunk)));
        at = end;
    }
    frames
}

#[test]
fn a_prompt_gives_the_same_beside_any_others_in_any_chunks_over_any_number_of_stages() {
    let manner = Manner { width: 6, depth: 3, right: 60, cancel: 1, hints: true };
    for seed in 0..60 {
        let rng = &mut Rng(seed);
        for wanted in wishes() {
            let mut line = Line::new(1 + rng.below(3) as u32, 4, 8, Rewind::Anywhere);
            let seq = SeqId(7);
            let text: Vec<Token> = (0..1 + rng.below(40)).map(|_| rng.token()).collect();
            let mut frames = frames(seq, &text, wanted, 8, rng).into_iter();
            let mut others: Vec<Front> = (0..2).map(|seq| Front::new(seq, manner, rng)).collect();
            let (mut told, mut passed) = (Told::default(), 0);
            loop {
                let mut moved = false;
                for front in &mut others {
                    moved |= rng.percent(50) && front.step(&mut line, rng);
                }
                if let Some(frame) = frames.next() {
                    line.send(frame);
                    moved = true;
                }
                moved |= line.step(rng);
                while let Some(report) = line.reports.pop_front() {
                    match report {
                        Report::Prompt(part) => {
                            assert_eq!(part.seq, seq);
                            told.hear(part.base, part.found);
                        }
                        Report::Progress(progress) if progress.seq == seq => passed = progress.next.0,
                        other => {
                            let of = |front: &&mut Front| front.seq() == seq_of(&other);
                            let front = others.iter_mut().find(of).expect("somebody's");
                            front.hear(other, &mut line, rng);
                        }
                    }
                }
                if !moved && others.iter().all(Front::is_done) {
                    break;
                }
            }
            assert_eq!(passed as usize, text.len(), "seed {seed}: {wanted:?}");
            assert_eq!(told, truth(&text, wanted), "seed {seed}: {wanted:?} of {text:?}");
        }
    }
}

fn seq_of(report: &Report) -> SeqId {
    report.answers().unwrap_or_else(|| panic!("{report:?}"))
}

#[test]
fn what_was_found_comes_before_the_report_on_its_chunk_and_pooled_rows_once() {
    let text: Vec<Token> = (1..6).map(Token).collect();
    let kinds = |wanted| {
        let mut stage = Stage::new(Toy::new(0, 1, 1, 2, Rewind::Anywhere));
        let mut rng = Rng(1);
        let said = frames(SeqId(1), &text, wanted, 1, &mut rng).into_iter();
        said.flat_map(|frame| stage.hear(frame))
            .map(|output| match output {
                Output::Report(Report::Prompt(_)) => 'f',
                Output::Report(Report::Progress(_)) => 'p',
                other => panic!("{other:?}"),
            })
            .collect::<String>()
    };
    assert_eq!(kinds(OfPrompt::Embedding(Pooling::None)), "fpfpfpfpfp");
    assert_eq!(kinds(OfPrompt::Embedding(Pooling::Mean)), "ppppfp");
    assert_eq!(kinds(OfPrompt::Embedding(Pooling::First)), "ppppfp");
    assert_eq!(kinds(OfPrompt::Logprobs { top: 0 }), "fpfpfpfpp", "nothing follows the last one");
}

#[test]
fn rows_are_asked_for_only_where_they_are_needed() {
    let text: Vec<Token> = (1..7).map(Token).collect();
    let asked = |wanted| {
        let mut stage = Stage::new(Toy::new(0, 1, 1, 2, Rewind::Anywhere));
        for frame in frames(SeqId(1), &text, wanted, 1, &mut Rng(1)) {
            stage.hear(frame);
        }
        stage.engine.calls.iter().filter(|call| call[0].want != stage::Want::Nothing).count()
    };
    let of = |pooling| asked(OfPrompt::Embedding(pooling));
    assert_eq!((of(Pooling::None), of(Pooling::Mean), of(Pooling::First), of(Pooling::Last)), (6, 6, 1, 1));
    assert_eq!(asked(OfPrompt::Logprobs { top: 0 }), 5);
}

#[test]
fn a_prompt_that_goes_on_behind_its_end_is_a_fault() {
    let mut stage = Stage::new(Toy::new(0, 1, 1, 8, Rewind::Anywhere));
    let text: Vec<Token> = (1..4).map(Token).collect();
    let wanted = OfPrompt::Embedding(Pooling::Mean);
    for frame in frames(SeqId(1), &text, wanted, 1, &mut Rng(1)) {
        stage.hear(frame);
    }
    let chunk = Chunk { seq: SeqId(1), base: Position(3), tokens: vec![Token(1)], follows: None };
    let said = stage.hear(Frame::new(Work::Chunk(chunk)));
    let [Output::Report(Report::Fault(fault))] = &said[..] else { panic!("{said:?}") };
    assert_eq!(fault.kind, FaultKind::ContextFull { end: Position(4), context: 3 });
}
