//! Requests that want something of their prompt itself.

use std::time::Duration;

use protocol::{
    Found, HiddenRows, OfPrompt, Pooling, Position, PromptPart, Report, SeqId, TokenLogprobs, Work,
};
use scheduler::{Config, Event, Output, Refusal, ReportFault, Request};

use crate::front::{Front, config, request};

const LOGPROBS: OfPrompt = OfPrompt::Logprobs { top: 0 };

fn wanting(n_prompt: usize, max_tokens: Option<u32>, of_prompt: OfPrompt) -> Request {
    Request { of_prompt: Some(of_prompt), ..request(n_prompt, max_tokens) }
}

/// Log-probabilities that say whose they are.
fn scores(positions: std::ops::Range<u32>) -> Found {
    let one = |at: u32| TokenLogprobs { logprob: -(at as f32), top: Vec::new() };
    Found::Logprobs(positions.map(one).collect())
}

fn rows(n: usize) -> Found {
    Found::Rows(HiddenRows { width: 2, values: vec![0.5; 2 * n] })
}

impl Front {
    fn found(&mut self, seq: u64, base: u32, found: Found) -> Result<(), ReportFault> {
        let part = PromptPart { seq: SeqId(seq), base: Position(base), found };
        self.report(2, Report::Prompt(Box::new(part)))
    }

    /// The positions whose log-probabilities callers hear now.
    fn heard(&mut self) -> Vec<u32> {
        let found = std::iter::from_fn(|| self.scheduler.poll_output()).filter_map(|output| match output {
            Output::Event(_, Event::Prompt(Found::Logprobs(found))) => Some(found),
            _ => None,
        });
        found.flatten().map(|logprobs| -logprobs.logprob as u32).collect()
    }

    /// What sequences are opened with now, and the tokens that follow the chunks sent.
    fn asked(&mut self) -> (Vec<Option<OfPrompt>>, Vec<Option<i32>>) {
        let (mut opens, mut follows) = (Vec::new(), Vec::new());
        while let Some(output) = self.scheduler.poll_output() {
            let Output::Work(frame) = output else { continue };
            match frame.work {
                Work::Open(open) => opens.push(open.of_prompt),
                Work::Chunk(chunk) => follows.push(chunk.follows.map(|token| token.0)),
                _ => {}
            }
        }
        (opens, follows)
    }
}

#[test]
fn a_prompt_is_scored_chunk_by_chunk_and_then_gone_on_from() {
    let mut front = Front::new(config());
    front.submit(wanting(6, Some(1), LOGPROBS)).unwrap();
    assert_eq!(front.asked(), (vec![Some(LOGPROBS)], vec![Some(5), Some(6)]));
    front.found(0, 1, scores(1..5)).unwrap();
    front.progress(0, 4).unwrap();
    front.found(0, 5, scores(5..6)).unwrap();
    assert_eq!(front.outputs(), ["r0 4 of its prompt", "r0 1 of its prompt"]);
    front.progress(0, 5).unwrap();
    front.verdict(0, 0, 5, 50, Some(protocol::End::Limit)).unwrap();
    assert_eq!(front.outputs(), ["r0 tokens [50]", "s0 close", "r0 done: Length"]);
}

#[test]
fn a_prompt_alone_goes_whole_into_chunks_and_ends_with_the_last_of_them() {
    for (wanted, max_tokens) in
        [(OfPrompt::Embedding(Pooling::Mean), None), (OfPrompt::Embedding(Pooling::Last), Some(0))]
    {
        let mut front = Front::new(config());
        front.submit(wanting(5, max_tokens, wanted)).unwrap();
        let said =
            ["r0 started after 0ns", "s0 open, limit 5", "s0 chunk at 0 [1, 2, 3, 4]", "s0 chunk at 4 [5]"];
        assert_eq!(front.outputs(), said);
        front.progress(0, 4).unwrap();
        assert!(front.outputs().is_empty(), "no window follows");
        front.found(0, 0, rows(1)).unwrap();
        front.progress(0, 5).unwrap();
        assert_eq!(front.outputs(), ["r0 1 of its prompt", "s0 close", "r0 done: Length"]);
        front.closed(0).unwrap();
        assert_eq!(front.scheduler.sequences().count(), 0);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut front = Front::new(config());
    let embedding = OfPrompt::Embedding(Pooling::Mean);
    assert_eq!(front.submit(request(3, Some(0))), Err(Refusal::NothingToGenerate));
    assert_eq!(front.submit(wanting(0, Some(0), embedding)), Err(Refusal::EmptyPrompt));
    let too_long = Err(Refusal::ContextLength { prompt: 21, context: 20 });
    assert_eq!(front.submit(wanting(21, Some(0), embedding)), too_long);
    assert!(front.submit(wanting(20, Some(0), embedding)).is_ok(), "no answer needs room");
    let too_long = Err(Refusal::ContextLength { prompt: 20, context: 20 });
    assert_eq!(front.submit(wanting(20, Some(1), LOGPROBS)), too_long);
}

#[test]
fn prompts_of_which_something_is_wanted_begin_with_nothing() {
    let shared = |request: Request| Request { namespace: Some(0), ..request };
    let mut front = Front::new(Config { prefix_tokens: 100, context: 64, chunk_rows: 32, ..config() });
    front.submit(shared(request(20, Some(1)))).unwrap();
    front.progress(0, 19).unwrap();
    front.verdict(0, 0, 19, 50, Some(protocol::End::Limit)).unwrap();
    front.closed(0).unwrap();
    front.asked();
    for of_prompt in [Some(LOGPROBS), None] {
        front.submit(Request { of_prompt, ..shared(request(20, Some(1))) }).unwrap();
    }
    let starts: Vec<u32> = std::iter::from_fn(|| front.scheduler.poll_output())
        .filter_map(|output| match output {
            Output::Work(frame) => match frame.work {
                Work::Open(open) => Some(open.start.0),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(starts, [0, 19]);
}

#[test]
fn chunks_whose_logits_are_wanted_are_short_where_the_vocabulary_is_large() {
    let rows = |n_vocab, of_prompt| {
        let config = Config { n_vocab, chunk_rows: 512, ..Config::new(1, 1, 4096, n_vocab) };
        let mut front = Front::new(config);
        front.submit(Request { of_prompt, ..request(1000, Some(1)) }).unwrap();
        std::iter::from_fn(|| front.scheduler.poll_output()).find_map(|output| match output {
            Output::Work(frame) => match frame.work {
                Work::Chunk(chunk) => Some(chunk.tokens.len()),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(rows(262_144, Some(LOGPROBS)), Some(64));
    assert_eq!(rows(262_144, Some(OfPrompt::Embedding(Pooling::Mean))), Some(64));
    assert_eq!(rows(262_144, None), Some(512));
    assert_eq!(rows(2000, Some(LOGPROBS)), Some(512));
    assert_eq!(rows(u32::MAX, Some(LOGPROBS)), Some(16));
}

#[test]
fn on_the_next_line_a_prompt_begins_again_and_its_caller_hears_each_part_once() {
    let mut front = Front::new(Config { replay_timeout: Duration::from_secs(5), ..config() });
    front.submit(wanting(9, Some(2), LOGPROBS)).unwrap();
    front.found(0, 1, scores(1..5)).unwrap();
    assert_eq!(front.heard(), [1, 2, 3, 4]);
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.scheduler.line_up(front.now);
    assert_eq!(front.asked(), (vec![Some(LOGPROBS)], vec![Some(5), Some(9)]), "from the beginning");
    front.found(1, 1, scores(1..5)).unwrap();
    front.progress(1, 4).unwrap();
    front.found(1, 5, scores(5..9)).unwrap();
    assert_eq!(front.heard(), [5, 6, 7, 8]);
    front.progress(1, 8).unwrap();
    front.verdict(1, 0, 8, 50, None).unwrap();
    front.asked();
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.scheduler.line_up(front.now);
    assert_eq!(front.asked().0, [None], "all of it is told");
}

#[test]
fn reports_that_are_not_what_was_wanted_fail_their_request() {
    let embedding = OfPrompt::Embedding(Pooling::Mean);
    let bad: [(OfPrompt, &[(u32, Found)]); 7] = [
        (LOGPROBS, &[(1, rows(1))]),
        (LOGPROBS, &[(0, scores(0..1))]),
        (LOGPROBS, &[(1, scores(1..2)), (1, scores(1..2))]),
        (LOGPROBS, &[(1, scores(1..9))]),
        (embedding, &[(0, scores(0..1))]),
        (embedding, &[(0, rows(2))]),
        (OfPrompt::Embedding(Pooling::None), &[(1, rows(1))]),
    ];
    for (wanted, parts) in bad {
        let mut front = Front::new(config());
        front.submit(wanting(3, Some(1), wanted)).unwrap();
        let (last, before) = parts.split_last().unwrap();
        before.iter().for_each(|(base, found)| front.found(0, *base, found.clone()).unwrap());
        let fault = front.found(0, last.0, last.1.clone());
        assert!(matches!(fault, Err(ReportFault::OfPrompt { .. })), "{wanted:?} {parts:?}: {fault:?}");
        assert!(front.outputs().iter().any(|said| said.starts_with("r0 failed")));
    }
    let mut front = Front::new(config());
    front.submit(request(3, Some(1))).unwrap();
    assert!(front.found(0, 1, scores(1..2)).is_err(), "nobody asked");
    let mut front = Front::new(config());
    front.submit(wanting(6, Some(1), LOGPROBS)).unwrap();
    assert!(matches!(front.progress(0, 4), Err(ReportFault::PromptUntold { .. })), "nothing was told");
    let mut front = Front::new(config());
    front.submit(wanting(3, Some(1), embedding)).unwrap();
    let other = Report::Prompt(Box::new(PromptPart { seq: SeqId(0), base: Position(0), found: rows(1) }));
    assert!(matches!(front.report(0, other), Err(ReportFault::NotTail { .. })));
}

#[test]
fn a_prompt_of_one_token_has_nothing_to_be_scored() {
    let mut front = Front::new(config());
    front.submit(wanting(1, Some(0), LOGPROBS)).unwrap();
    assert_eq!(front.outputs(), ["r0 started after 0ns", "s0 open, limit 1", "s0 chunk at 0 [1]"]);
    front.progress(0, 1).unwrap();
    assert_eq!(front.outputs(), ["s0 close", "r0 done: Length"]);
}
