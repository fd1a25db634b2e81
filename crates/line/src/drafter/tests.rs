//! The core over an engine and samplers that check everything they are told.

use std::collections::BTreeMap;

use proptest::prelude::*;
use protocol::{Epoch, Mirostat, Open, Position, SamplerParams, SeqId, Token};
use scheduler::{Drafting, RequestId};
use spec::{Draft, TextChange};
use stage::null::NullEngine;
use stage::{EngineShape, Want};

use super::core::{AHEAD, Call, Core, Picked};

const N_VOCAB: u64 = 5;
/// Ends a text; never said after a text of an odd length.
const END: Token = Token(0);

/// What the drafter's model says after a text: it depends on all of it, as penalties do.
fn next(seed: u64, text: &[Token]) -> Token {
    let mixed = text.iter().fold(seed, |sum, token| {
        let sum = (sum ^ u64::from(token.0.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^ (sum >> 31)
    });
    match (mixed >> 20) % N_VOCAB {
        0 if text.len() % 2 == 1 => Token(1),
        id => Token(id as i32),
    }
}

fn shape(n_slots: u16, context: u32, max_rows: usize) -> EngineShape {
    let whole = NullEngine::shape(0, 1, 4, n_slots);
    EngineShape { context, max_rows, end_tokens: vec![END], ..whole }
}

fn open(prompt: &[Token], limit: u32, seed: u64) -> Drafting {
    Drafting::Open(Box::new(Open {
        seq: SeqId(0),
        start: Position(prompt.len() as u32),
        reuse: None,
        held: None,
        seed,
        choice: 0,
        sampler: SamplerParams::default(),
        limit: Position(limit),
        ignore_eos: false,
        top_logprobs: None,
        of_prompt: None,
        history: prompt.to_vec(),
    }))
}

/// The driver, with an engine that knows what each slot must hold.
struct Driver {
    core: Core,
    shape: EngineShape,
    memory: Vec<Vec<Token>>,
    samplers: Vec<(u64, Vec<Token>)>,
    under_way: Option<(Call, Vec<Picked>)>,
}

impl Driver {
    fn new(shape: EngineShape) -> Self {
        let n_slots = usize::from(shape.n_slots);
        Self {
            core: Core::new(&shape),
            memory: vec![Vec::new(); n_slots],
            samplers: vec![(0, Vec::new()); n_slots],
            shape,
            under_way: None,
        }
    }

    /// Begins a call, if there is one.
    fn begin(&mut self) -> bool {
        if self.under_way.is_some() {
            assert_eq!(self.core.next_call(), None, "one call at a time");
            return false;
        }
        let Some(call) = self.core.next_call() else { return false };
        for (slot, len) in &call.cuts {
            self.memory[usize::from(slot.0)].truncate(len.0 as usize);
        }
        let n_rows: usize = call.spans.iter().map(|span| span.n_rows).sum();
        assert!((1..=self.shape.max_rows).contains(&n_rows) && n_rows == call.tokens.len());
        let (mut tokens, mut picks, mut picked) = (call.tokens.iter(), call.picks.iter(), Vec::new());
        for (i, span) in call.spans.iter().enumerate() {
            assert_eq!(usize::from(span.slot.0), usize::from(call.spans[0].slot.0) + i, "contiguous slots");
            assert_eq!(span.n_rows, call.spans[0].n_rows, "equal spans");
            let memory = &mut self.memory[usize::from(span.slot.0)];
            assert_eq!(memory.len(), span.base.0 as usize, "rows follow what the slot holds");
            memory.extend(tokens.by_ref().take(span.n_rows));
            assert!(memory.len() <= self.shape.context as usize, "nothing is beyond the context");
            if span.want == Want::Logits {
                let pick = picks.next().expect("logits are wanted to pick something");
                let (seed, recorded) = &mut self.samplers[usize::from(span.slot.0)];
                if let Some(open) = &pick.fresh {
                    (*seed, *recorded) = (open.seed, Vec::new());
                }
                recorded.extend(&pick.record);
                assert_eq!(recorded.len(), pick.position.0 as usize);
                assert_eq!(recorded, memory, "the sampler knows the text that was computed");
                let token = next(*seed, recorded);
                recorded.push(token);
                picked.push(Picked { token, probability: 0.5 });
            }
        }
        assert!(picks.next().is_none());
        self.under_way = Some((call, picked));
        true
    }

    fn finish(&mut self, fails: bool) -> bool {
        let Some((call, picked)) = self.under_way.take() else { return false };
        if fails {
            // Whatever a slot holds now, it is cut before it is used again.
            call.spans.iter().for_each(|span| self.memory[usize::from(span.slot.0)].push(END));
        }
        self.core.handle_done(&call, (!fails).then_some(&picked));
        true
    }

    /// Computes until nothing is left; the last draft of each request.
    fn settle(&mut self) -> BTreeMap<RequestId, Draft> {
        while self.finish(false) || self.begin() {}
        std::iter::from_fn(|| self.core.poll_draft()).collect()
    }
}

/// What a drafter should say after `text`.
fn expected(seed: u64, text: &[Token], limit: usize, context: usize) -> Vec<Token> {
    let mut all = text.to_vec();
    while all.len() - text.len() < AHEAD && all.len() < limit && all.len() <= context {
        all.push(next(seed, &all));
        if all.last() == Some(&END) {
            break;
        }
    }
    all.split_off(text.len())
}

fn change(epoch: u32, from: usize, tokens: &[Token]) -> Drafting {
    Drafting::Text(TextChange { epoch: Epoch(epoch), from: Position(from as u32), tokens: tokens.to_vec() })
}

fn tokens(ids: &[i32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

const ONE: RequestId = RequestId(1);
const TWO: RequestId = RequestId(2);

#[test]
fn a_prompt_is_computed_before_drafts_are_wanted_and_drafted_on() {
    let mut driver = Driver::new(shape(2, 4096, 512));
    let prompt: Vec<_> = (0..200).map(|i| Token(1 + i % 4)).collect();
    driver.core.handle(ONE, open(&prompt, 400, 3));
    assert_eq!(driver.settle(), BTreeMap::new(), "nobody has asked");
    assert_eq!(driver.memory[0][..200], prompt);
    driver.core.handle(ONE, change(0, 200, &[]));
    let drafts = driver.settle();
    let draft = &drafts[&ONE];
    assert_eq!((draft.base, draft.epoch), (Position(200), Epoch(0)));
    assert_eq!(draft.block.tokens, expected(3, &prompt, 400, 4096));
    assert_eq!(draft.block.tokens.len(), draft.block.probabilities.len());
}

#[test]
fn a_correction_costs_one_row_and_what_was_right_costs_none() {
    let mut driver = Driver::new(shape(1, 4096, 512));
    let prompt = tokens(&[1, 2, 3]);
    driver.core.handle(ONE, open(&prompt, 400, 8));
    driver.core.handle(ONE, change(0, 3, &[]));
    let drafted = driver.settle()[&ONE].block.tokens.clone();
    // The front sends two of the tokens, and the second one is wrong.
    driver.core.handle(ONE, change(0, 3, &drafted[..2]));
    driver.settle();
    let other = Token(1 + drafted[1].0 % 4);
    driver.core.handle(ONE, change(1, 4, &[other]));
    assert!(driver.begin());
    let (call, _) = driver.under_way.as_ref().unwrap();
    assert_eq!((call.spans[0].base, call.spans[0].n_rows, &call.tokens), (Position(4), 1, &vec![other]));
    let text = [&prompt[..], &drafted[..1], &[other]].concat();
    let draft = &driver.settle()[&ONE];
    assert_eq!((draft.base, draft.epoch), (Position(5), Epoch(1)));
    assert_eq!(draft.block.tokens, expected(8, &text, 400, 4096));
}

#[test]
fn sequences_that_are_as_far_share_calls_and_a_long_prompt_does_not_hold_up_the_others() {
    let endless = EngineShape { end_tokens: Vec::new(), ..shape(3, 4096, 512) };
    let mut driver = Driver::new(endless);
    for id in [ONE, TWO] {
        driver.core.handle(id, open(&tokens(&[1, 2]), 400, id.0));
        driver.core.handle(id, change(0, 2, &[]));
    }
    assert!(driver.begin());
    assert_eq!(driver.under_way.as_ref().unwrap().0.spans.len(), 2);
    driver.finish(false);
    let long: Vec<_> = (0..600).map(|i| Token(1 + i % 3)).collect();
    driver.core.handle(RequestId(3), open(&long, 900, 0));
    let mut rows = Vec::new();
    for _ in 0..6 {
        assert!(driver.begin());
        rows.push(driver.under_way.as_ref().unwrap().0.tokens.len());
        driver.finish(false);
    }
    assert_eq!(rows, [64, 2, 64, 2, 64, 2], "they take turns");
}

#[test]
fn without_a_free_slot_a_sequence_is_not_drafted_and_the_next_one_keeps_a_common_prompt() {
    let mut driver = Driver::new(shape(1, 4096, 512));
    let prompt = tokens(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
    for id in [ONE, TWO] {
        driver.core.handle(id, open(&prompt, 400, 1));
        driver.core.handle(id, change(0, 10, &[]));
    }
    assert_eq!(driver.settle().into_keys().collect::<Vec<_>>(), [ONE]);
    driver.core.handle(ONE, Drafting::Close);
    assert!(!driver.begin(), "nobody wants anything");
    driver.core.handle(RequestId(3), open(&[&prompt[..8], &tokens(&[4, 4])].concat(), 400, 1));
    assert!(driver.begin());
    assert_eq!(driver.under_way.as_ref().unwrap().0.spans[0].base, Position(8));
    driver.core.handle(TWO, change(0, 10, &tokens(&[3])));
    driver.core.handle(TWO, Drafting::Close);
}

#[test]
fn beyond_its_context_and_the_limit_of_the_request_nothing_is_drafted() {
    for (context, limit) in [(12, 400), (400, 13)] {
        let mut driver = Driver::new(shape(1, context, 512));
        let prompt = tokens(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
        driver.core.handle(ONE, open(&prompt, limit, 4));
        driver.core.handle(ONE, change(0, 10, &[]));
        assert!(driver.settle()[&ONE].block.tokens.len() <= 3);
        driver.core.handle(ONE, change(0, 10, &tokens(&[1, 1, 1])));
        assert_eq!(driver.settle(), BTreeMap::new());
    }
}

#[test]
fn mirostat_drafts_as_its_temperature_alone() {
    let mut driver = Driver::new(shape(1, 64, 64));
    let Drafting::Open(mut open) = open(&tokens(&[1, 2]), 60, 4) else { panic!("it opens") };
    let mirostat = Some(Mirostat { version: 2, tau: 5.0, eta: 0.1, mu: 10.0 });
    open.sampler =
        SamplerParams { temperature: 0.7, top_k: 40, repeat_penalty: 1.1, mirostat, ..open.sampler };
    driver.core.handle(ONE, Drafting::Open(open));
    let call = driver.core.next_call().unwrap();
    let sampler = &call.picks[0].fresh.as_ref().unwrap().sampler;
    let plain = SamplerParams { temperature: 0.7, repeat_penalty: 1.1, ..SamplerParams::default() };
    assert_eq!(*sampler, plain);
}

/// A request as the front sees it.
struct Told {
    seed: u64,
    limit: usize,
    text: Vec<Token>,
    n_prompt: usize,
    epoch: u32,
    is_drafted: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_the_front_sends_and_whenever_drafts_are_what_the_model_says_of_it(
        n_slots in 1_u16..4,
        context in 20_u32..90,
        max_rows in 1_usize..40,
        steps in prop::collection::vec((0_u8..12, any::<u16>()), 1..150),
    ) {
        let mut driver = Driver::new(shape(n_slots, context, max_rows));
        let mut told: BTreeMap<RequestId, Told> = BTreeMap::new();
        let mut last: BTreeMap<RequestId, Draft> = BTreeMap::new();
        let mut next_id = 0;
        for (what, how) in steps {
            let how = usize::from(how);
            let one = told.keys().nth(how % told.len().max(1)).copied();
            match (what, one) {
                (0 | 1, _) if told.len() < 5 => {
                    let prompt: Vec<_> = (0..1 + how % 30).map(|i| Token(1 + (i * how / 7) as i32 % 4)).collect();
                    let (id, limit) = (RequestId(next_id), prompt.len() + 2 + how % 60);
                    next_id += 1;
                    let n_drafted = told.values().filter(|told| told.is_drafted).count();
                    let is_drafted = n_drafted < usize::from(n_slots);
                    driver.core.handle(id, open(&prompt, limit as u32, u64::from(next_id % 2 == 0)));
                    let (seed, n_prompt) = (u64::from(next_id % 2 == 0), prompt.len());
                    told.insert(id, Told { seed, limit, text: prompt, n_prompt, epoch: 0, is_drafted });
                }
                // What was drafted is sent, or something else, or a correction comes.
                (2..=6, Some(id)) => {
                    let one = told.get_mut(&id).unwrap();
                    let is_correction = what == 6 && one.text.len() > one.n_prompt;
                    let from = match is_correction {
                        true => one.n_prompt + how % (one.text.len() - one.n_prompt),
                        false => one.text.len(),
                    };
                    let mut sent = match last.get(&id) {
                        Some(draft) if what < 5 && draft.base.0 as usize <= from => {
                            draft.block.tokens.iter().skip(from - draft.base.0 as usize).take(how % 5).copied().collect()
                        }
                        _ => (0..how % 3).map(|i| Token(1 + (i + how) as i32 % 4)).collect::<Vec<_>>(),
                    };
                    if is_correction {
                        one.epoch += 1;
                        sent.insert(0, Token(1 + one.text[from].0 % 4));
                    }
                    sent.truncate(one.limit - 1 - from.min(one.limit - 1));
                    one.text.truncate(from);
                    one.text.extend(&sent);
                    driver.core.handle(id, change(one.epoch, from, &sent));
                }
                (7, Some(id)) => {
                    told.remove(&id);
                    driver.core.handle(id, Drafting::Close);
                }
                (8 | 9, _) => _ = driver.begin(),
                (10, _) if how % 40 == 0 => {
                    if let Some((call, _)) = &driver.under_way {
                        let slots = call.spans.iter().map(|span| span.slot).collect::<Vec<_>>();
                        prop_assert!(!slots.is_empty());
                        driver.finish(true);
                        // Which requests those were is the core's business: those that it forgot are drafted no more.
                        told.values_mut().for_each(|one| one.is_drafted = false);
                        told.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| {
                            driver.core.handle(id, Drafting::Close);
                        });
                    }
                }
                _ => _ = driver.finish(false),
            }
            while let Some((id, draft)) = driver.core.poll_draft() {
                let one = &told[&id];
                prop_assert!(one.is_drafted);
                prop_assert_eq!((draft.base.0 as usize, draft.epoch), (one.text.len(), Epoch(one.epoch)));
                let truth = expected(one.seed, &one.text, one.limit, context as usize);
                prop_assert!(!draft.block.tokens.is_empty() && truth.starts_with(&draft.block.tokens));
                prop_assert_eq!(draft.block.tokens.len(), draft.block.probabilities.len());
                last.insert(id, draft);
            }
        }
        // In the end everything that may be drafted is.
        for (&id, one) in told.iter().filter(|(_, one)| one.is_drafted) {
            driver.core.handle(id, change(one.epoch, one.text.len(), &[]));
        }
        last.extend(driver.settle());
        for (id, one) in told.iter().filter(|(_, one)| one.is_drafted) {
            let truth = expected(one.seed, &one.text, one.limit, context as usize);
            let found = last.get(id).filter(|draft| draft.epoch == Epoch(one.epoch)).and_then(|draft| {
                let known = one.text.get(draft.base.0 as usize..)?;
                draft.block.tokens.strip_prefix(known)
            });
            let found = found.unwrap_or_default();
            prop_assert_eq!(found, &truth[..], "request {}", id.0);
        }
    }
}
