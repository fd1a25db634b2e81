//! What a model's own blocks that draft (NextN) say beside a slice, against what they say beside the whole model.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gguf::toy::{Toy, Weights};
use gguf::{Model, Plan, Source};
use llama::{EngineConfig, LlamaEngine, LoadError};
use protocol::{Open, Position, SamplerParams, SeqId, Token};
use stage::{Cancel, Drafted, Engine, EngineError, Input, Sampled, Sampler, Slot, Want, Wish};

use crate::architectures::{Bench, is_soak, turn};
use crate::support::{Line, argmax, cut, difference, span, tokens};

mod chains;
mod prefixes;
mod refused;

/// Plain attention; both kinds of layers in their real order; blocks in a file of their own.
const EACH_SORT: [&str; 3] = ["hy_v3-nextn", "qwen35-nextn", "glm4moe-nextn"];
/// Blocks with windows and without; windows only.
const CHAINS: [&str; 2] = ["step35-nextn", "mimo2-nextn"];
/// These, and the other families.
const MODELS: [&str; 12] = [
    "hy_v3-nextn",
    "qwen35-nextn",
    "glm4moe-nextn",
    "step35-nextn",
    "mimo2-nextn",
    "bailingmoe3-nextn",
    "cohere2moe-nextn",
    "deepseek2-nextn",
    "deepseek32-nextn",
    "glm-dsa-nextn",
    "nemotron_h_moe-nextn",
    "qwen35moe-nextn",
];
const CHUNK: usize = 16;
const PROMPT: usize = 37;
/// Tokens of a text.
const TEXT: usize = 90;
const MOST: usize = 4;

fn config() -> EngineConfig {
    EngineConfig {
        context: 256,
        n_slots: 3,
        max_rows: CHUNK as u32,
        undo_rows: MOST as u32,
        drafts: true,
        ..EngineConfig::new("")
    }
}

fn exact() -> EngineConfig {
    EngineConfig { exact: true, ..config() }
}

/// Takes the best token and keeps the logits.
struct Best(Arc<Mutex<Vec<Vec<f32>>>>);

impl Sampler for Best {
    fn prompt(&mut self, _token: Token) {}

    fn sample(&mut self, _position: Position, logits: &[f32]) -> Result<Sampled, EngineError> {
        self.0.lock().unwrap().push(logits.to_vec());
        Ok(Sampled { token: Token(argmax(logits)), logprobs: None, mu: None, grammar_ended: false })
    }
}

/// Chooses as another does and keeps the logits.
struct Kept(Box<dyn Sampler>, Arc<Mutex<Vec<Vec<f32>>>>);

impl Sampler for Kept {
    fn prompt(&mut self, token: Token) {
        self.0.prompt(token);
    }

    fn sample(&mut self, position: Position, logits: &[f32]) -> Result<Sampled, EngineError> {
        self.1.lock().unwrap().push(logits.to_vec());
        self.0.sample(position, logits)
    }
}

/// Up to so many tokens behind `token`, which is the one at `position`, and the logits that they were chosen from.
fn draft(
    engine: &mut LlamaEngine,
    slot: u16,
    (position, token): (usize, i32),
    n_tokens: usize,
) -> (Vec<i32>, Vec<Vec<f32>>) {
    let logits = Arc::default();
    let wish = wish(slot, (position, token), n_tokens, &logits);
    let drafted = engine.draft(vec![wish]).unwrap().remove(0);
    let logits = std::mem::take(&mut *logits.lock().unwrap());
    (ids(&drafted), logits)
}

fn wish(
    slot: u16,
    (position, token): (usize, i32),
    n_tokens: usize,
    logits: &Arc<Mutex<Vec<Vec<f32>>>>,
) -> Wish {
    let sampler = Box::new(Best(Arc::clone(logits)));
    Wish { slot: Slot(slot), token: Token(token), position: Position(position as u32), n_tokens, sampler }
}

fn ids(drafted: &Drafted) -> Vec<i32> {
    assert_eq!(drafted.tokens.len(), drafted.probabilities.len());
    drafted.tokens.iter().map(|token| token.0).collect()
}

/// A text that was decoded greedily.
#[derive(Default)]
struct Run {
    tokens: Vec<i32>,
    logits: Vec<Vec<f32>>,
    drafts: Vec<Vec<i32>>,
    draft_logits: Vec<Vec<f32>>,
    /// Guesses that were right.
    right: usize,
    /// Windows with a guess that was wrong.
    contradicted: usize,
}

/// Guesses are drafted, checked and, where they were wrong, taken back by the next window; 1 to 4 at a time in turn.
fn generate(line: &mut Line, slot: u16, prompt: &[i32], n: usize, drafts: bool) -> Run {
    go_on(line, slot, prompt, 0, n, drafts)
}

/// Runs a text but for its last token from position `from` on.
fn fill(line: &mut Line, slot: u16, text: &[i32], from: usize) {
    let before = &text[from..text.len() - 1];
    for (index, chunk) in before.chunks(CHUNK).enumerate() {
        line.call(&[span(slot, from + index * CHUNK, chunk.len(), false)], chunk);
    }
}

/// As [`generate`]; the slot holds the prompt's first tokens already.
fn go_on(line: &mut Line, slot: u16, prompt: &[i32], from: usize, n: usize, drafts: bool) -> Run {
    let mut run = Run::default();
    fill(line, slot, prompt, from);
    let (last, before) = prompt.split_last().unwrap();
    let mut window = vec![*last];
    let mut at = before.len();
    for round in 0.. {
        line.cut(slot, at);
        let logits = line.call(&[span(slot, at, window.len(), true)], &window);
        let mut n_right = 0;
        for (row, logits) in logits.into_iter().enumerate() {
            let token = argmax(&logits);
            run.tokens.push(token);
            run.logits.push(logits);
            if window.get(row + 1) != Some(&token) {
                break;
            }
            n_right += 1;
        }
        run.right += n_right;
        run.contradicted += usize::from(n_right + 1 < window.len());
        if run.tokens.len() >= n {
            return run;
        }
        at += n_right + 1;
        window = vec![run.tokens[run.tokens.len() - 1]];
        if drafts {
            let (guesses, mut logits) = draft(line.tail_mut(), slot, (at, window[0]), 1 + round % MOST);
            window.extend(&guesses);
            if round % 3 == 2 {
                // Toys seldom disagree with themselves.
                let at = 1 + round % guesses.len();
                window[at] = (window[at] + 1) % gguf::toy::VOCABULARY as i32;
            }
            run.drafts.push(guesses);
            run.draft_logits.append(&mut logits);
        }
    }
    run
}

/// Tokens in a draft at most: a chain drafts one with each block.
fn most(name: &str) -> usize {
    match Toy::named(name).unwrap().spec().n_nextn() {
        1 => MOST,
        n_blocks => n_blocks as usize,
    }
}

fn prompt(seed: u64) -> Vec<i32> {
    tokens(PROMPT, gguf::toy::VOCABULARY as usize, seed)
}

/// Legal cuts of a toy in two, and one in three.
fn cuts(source: &Source<'_>) -> Vec<Vec<u32>> {
    let n = source.n_layers();
    let two = (1..n).map(|at| vec![at]);
    two.chain([vec![n / 4, n * 5 / 8]]).filter(|cuts| Plan::at_cuts(source, cuts).is_ok()).collect()
}

fn whole(bench: &Bench, config: &EngineConfig) -> Line {
    Line::load(std::slice::from_ref(&bench.whole), config).unwrap()
}

/// A toy in two stages.
fn staged(bench: &Bench, config: &EngineConfig) -> Line {
    let model = Model::open(&bench.whole).unwrap();
    let (paths, _) = cut(&Source::new(&model).unwrap(), &[3], bench.folder());
    Line::load(&paths, config).unwrap()
}

/// Every legal cut, or two of them.
fn check(name: &str, weights: Weights, every_cut: bool) {
    let bench = Bench::new(Toy::named(name).unwrap().weights(weights));
    let model = Model::open(&bench.whole).unwrap();
    let source = Source::new(&model).unwrap();
    let expected = generate(&mut whole(&bench, &config()), 1, &prompt(5), TEXT, true);
    let (right, wrong) = (expected.right, expected.contradicted);
    assert!(right >= 20 && wrong >= 5, "{name}: {right} guesses were right, {wrong} windows contradicted");
    let mut n_cuts = 0;
    let mut cuts = cuts(&source);
    if !every_cut {
        let last = cuts.len() - 1;
        cuts.swap(0, turn(name) as usize % last);
        cuts.drain(1..last);
    }
    for cuts in cuts {
        let (paths, tolerance) = cut(&source, &cuts, bench.folder());
        let found = generate(&mut Line::load(&paths, &config()).unwrap(), 1, &prompt(5), TEXT, true);
        assert_eq!(found.drafts, expected.drafts, "{name} cut at {cuts:?}");
        assert_eq!(found.tokens, expected.tokens, "{name} cut at {cuts:?}");
        let of_drafts = difference(&found.draft_logits, &expected.draft_logits);
        let of_text = difference(&found.logits, &expected.logits);
        assert_eq!((of_drafts, of_text, tolerance), (0.0, 0.0, 0.0), "{name} cut at {cuts:?}");
        n_cuts += 1;
    }
    // One architecture can be cut before two of its layers only.
    let least = if every_cut && name != "glm-dsa-nextn" { 3 } else { 2 };
    assert!(n_cuts >= least, "{name}: {n_cuts} cuts");
}

#[test]
fn a_tail_drafts_what_the_whole_model_drafts_wherever_it_is_cut() {
    for name in MODELS {
        check(name, Weights::F32, is_soak() || EACH_SORT.contains(&name) || CHAINS.contains(&name));
    }
}

#[test]
fn quantised_weights_draft_the_same_too() {
    for weights in [Weights::Q8_0, Weights::Q4_0] {
        for name in MODELS {
            let is_tried =
                EACH_SORT.contains(&name) || turn(name).is_multiple_of(2) == (weights == Weights::Q8_0);
            if is_soak() || is_tried {
                check(name, weights, is_soak() || EACH_SORT.contains(&name));
            }
        }
    }
}

#[test]
fn drafts_leave_the_text_as_it_is() {
    for name in MODELS {
        let bench = Bench::new(Toy::named(name).unwrap());
        let quiet = EngineConfig { drafts: false, ..exact() };
        let plain = generate(&mut staged(&bench, &quiet), 0, &prompt(6), TEXT, false);
        let guessed = generate(&mut staged(&bench, &exact()), 0, &prompt(6), TEXT, true);
        let n = TEXT.min(plain.tokens.len()).min(guessed.tokens.len());
        assert_eq!(plain.tokens[..n], guessed.tokens[..n], "{name}");
        assert_eq!(difference(&plain.logits[..n], &guessed.logits[..n]), 0.0, "{name}");
    }
}

/// What follows a guess that was wrong is drafted as if it had never been.
#[test]
fn wrong_guesses_leave_nothing_behind() {
    for name in MODELS {
        let bench = Bench::new(Toy::named(name).unwrap());
        let mut line = staged(&bench, &exact());
        let text = tokens(60, gguf::toy::VOCABULARY as usize, 8);
        let expected: Vec<_> = [40, 45, 50]
            .map(|len| {
                let mut fresh = staged(&bench, &exact());
                fresh.prefill(&text[..len], CHUNK);
                draft(fresh.tail_mut(), 0, (len, text[len]), 3)
            })
            .into();
        line.prefill(&text[..38], CHUNK);
        // Windows with one right row or more, and then some that are taken back; a draft in between, or none.
        for (from, to, drafted) in
            [(38, 40, true), (40, 41, false), (41, 45, true), (45, 49, false), (49, 50, true)]
        {
            let mut window = text[from..to].to_vec();
            window.extend(&[7, 8, 9, 10][..(MOST + 1 - window.len()).min(3)]);
            line.window(from, &window);
            if drafted {
                let at = [40, 45, 50].iter().position(|&len| len == to).unwrap();
                let (found, logits) = draft(line.tail_mut(), 0, (to, text[to]), 3);
                assert_eq!(found, expected[at].0, "{name} at {to}");
                assert_eq!(difference(&logits, &expected[at].1), 0.0, "{name} at {to}");
            }
            line.truncate(to);
        }
    }
}

/// Drafted together, and each of them with others in between, as alone.
#[test]
fn several_sequences_draft_as_they_do_alone() {
    for name in MODELS {
        let bench = Bench::new(Toy::named(name).unwrap());
        let texts = [1, 2, 3].map(|seed| tokens(50, gguf::toy::VOCABULARY as usize, seed));
        let lens = [30, 41, 20];
        let alone: Vec<_> = (0..3)
            .map(|i| {
                let mut line = staged(&bench, &exact());
                line.prefill(&texts[i][..lens[i]], CHUNK);
                draft(line.tail_mut(), 0, (lens[i], texts[i][lens[i]]), 3)
            })
            .collect();
        let mut line = staged(&bench, &exact());
        for (slot, (text, len)) in (0..).zip(texts.iter().zip(lens)) {
            for from in (0..len).step_by(CHUNK) {
                let n = CHUNK.min(len - from);
                line.call(&[span(slot, from, n, false)], &text[from..from + n]);
            }
        }
        for order in [vec![0, 1, 2], vec![2, 0], vec![1]] {
            let logits: Vec<Arc<Mutex<Vec<Vec<f32>>>>> = order.iter().map(|_| Arc::default()).collect();
            let wishes = order.iter().zip(&logits);
            let wishes =
                wishes.map(|(&i, kept)| wish(i as u16, (lens[i], texts[i][lens[i]]), 1 + i, kept)).collect();
            let drafted = line.tail_mut().draft(wishes).unwrap();
            for ((&i, drafted), kept) in order.iter().zip(&drafted).zip(&logits) {
                assert_eq!(ids(drafted), alone[i].0[..1 + i], "{name}: {i} of {order:?}");
                let found = difference(&kept.lock().unwrap(), &alone[i].1[..1 + i]);
                assert_eq!(found, 0.0, "{name}: {i} of {order:?}");
            }
        }
    }
}

#[test]
fn what_was_saved_drafts_as_if_nothing_had_been() {
    for name in MODELS {
        let bench = Bench::new(Toy::named(name).unwrap());
        let text = tokens(50, gguf::toy::VOCABULARY as usize, 4);
        let mut line = staged(&bench, &exact());
        line.prefill(&text[..45], CHUNK);
        let expected = draft(line.tail_mut(), 0, (45, text[45]), 4);
        let saved = line.save(0);
        line.cut(0, 0);
        line.prefill(&text[5..20], CHUNK);
        line.load_saved(2, &saved);
        assert_eq!(draft(line.tail_mut(), 2, (45, text[45]), 4), expected, "{name}");
        // And what was saved without drafts is gone on from, with worse ones at first.
        let mut quiet = staged(&bench, &EngineConfig { drafts: false, ..exact() });
        quiet.prefill(&text[..45], CHUNK);
        let saved = quiet.save(0);
        line.load_saved(1, &saved);
        assert_eq!(draft(line.tail_mut(), 1, (45, text[45]), 4).0.len(), most(name), "{name}");
        let logits = line.call(&[span(1, 45, 5, true)], &text[45..]);
        line.call(&[span(2, 45, 5, true)], &text[45..]);
        assert_eq!(difference(&logits, &quiet.window(45, &text[45..])), 0.0, "{name}");
        let late = draft(line.tail_mut(), 1, (50, 3), 2);
        assert_ne!(late.1, draft(line.tail_mut(), 2, (50, 3), 2).1, "{name}: what came before counts");
        // One that drafts is of use to one that does not, too.
        let saved = line.save(2);
        quiet.load_saved(1, &saved);
        quiet.call(&[span(1, 50, 1, true)], &[3]);
    }
}

#[test]
fn a_stopped_call_costs_no_drafts() {
    let bench = Bench::new(Toy::named("hy_v3-nextn").unwrap());
    let text: Vec<Token> = tokens(20, 512, 7).into_iter().map(Token).collect();
    let mut found = [true, false].map(|is_stopped| {
        let config = EngineConfig { path: bench.whole.clone(), ..exact() };
        let mut engine = LlamaEngine::load(&config, &mut |_| ()).unwrap();
        let mut out = Vec::new();
        let cancel = Cancel::default();
        engine.heed(cancel.clone());
        engine.run(&[span(0, 0, 4, false)], Input::Tokens(&text[..4]), &mut out).unwrap();
        if is_stopped {
            cancel.raise();
            engine.run(&[span(0, 4, 6, true)], Input::Tokens(&text[4..10]), &mut out).unwrap_err();
            cancel.clear();
        }
        engine.run(&[span(0, 4, 3, true)], Input::Tokens(&text[4..7]), &mut out).unwrap();
        draft(&mut engine, 0, (7, text[7].0), 3)
    });
    let [stopped, never] = found.each_mut().map(std::mem::take);
    assert_eq!(stopped, never);
}

/// A prompt whose hidden rows are wanted is told to the block as any other.
#[test]
fn rows_that_are_wanted_otherwise_are_told_too() {
    let bench = Bench::new(Toy::named("hy_v3-nextn").unwrap());
    let text = tokens(20, 512, 11);
    let mut found = [Want::Hidden, Want::Logits, Want::Nothing].map(|want| {
        let mut line = staged(&bench, &exact());
        line.run(&[stage::Span { want, ..span(0, 0, 15, false) }], &text[..15]);
        line.window(15, &text[15..18]);
        draft(line.tail_mut(), 0, (18, text[18]), 3)
    });
    let [hidden, logits, nothing] = found.each_mut().map(std::mem::take);
    assert!(hidden == nothing && logits == nothing);
}

#[test]
fn drafts_are_chosen_with_the_noise_of_their_positions() {
    let bench = Bench::new(Toy::named("hy_v3-nextn").unwrap());
    let mut line = staged(&bench, &exact());
    line.prefill(&prompt(3), CHUNK);
    let open = Open {
        seq: SeqId(1),
        start: Position(0),
        reuse: None,
        held: None,
        seed: 5,
        choice: 0,
        sampler: SamplerParams {
            temperature: 3.0,
            top_k: 40,
            repeat_penalty: 1.1,
            ..SamplerParams::default()
        },
        limit: Position(200),
        ignore_eos: false,
        top_logprobs: None,
        of_prompt: None,
        history: Vec::new(),
    };
    let mut sampler = line.tail().sampler(&open).unwrap();
    prompt(3).into_iter().for_each(|token| sampler.prompt(Token(token)));
    let mut drafted = || {
        let logits = Arc::default();
        let sampler = Box::new(Kept(sampler.drafting().unwrap(), Arc::clone(&logits)));
        let wish = Wish {
            slot: Slot(0),
            token: Token(9),
            position: Position(PROMPT as u32),
            n_tokens: MOST,
            sampler,
        };
        let Drafted { tokens, probabilities, .. } = line.tail_mut().draft(vec![wish]).unwrap().remove(0);
        let logits = std::mem::take(&mut *logits.lock().unwrap());
        (tokens, probabilities, logits)
    };
    let (chosen, probabilities, logits) = drafted();
    assert!(
        drafted() == (chosen.clone(), probabilities.clone(), logits.clone()),
        "the sampler is left as it is"
    );
    assert!(chosen.len() == MOST && logits.len() == MOST);
    // By hand: the text's own sampler goes on from the very logits, at the positions that the tokens would have.
    for (i, logits) in logits.iter().enumerate() {
        let own = sampler.sample(Position((PROMPT + 1 + i) as u32), logits).unwrap();
        assert_eq!(own.token, chosen[i], "token {i}");
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let weights = logits.iter().map(|&logit| f64::from(logit - most).exp());
        let of_own = f64::from(logits[own.token.0 as usize] - most).exp();
        let expected = of_own / weights.sum::<f64>();
        assert!((expected - f64::from(probabilities[i])).abs() < 1e-5, "{expected}: {probabilities:?}");
    }
    let greedy = |logits: &Vec<f32>| Token(argmax(logits));
    assert_ne!(chosen, logits.iter().map(greedy).collect::<Vec<_>>(), "there is no noise");
}
