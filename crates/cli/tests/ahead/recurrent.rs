//! Models with recurrent layers: many answers at once, guessed or not, and each is the plain one.

use gguf::arch::{self, Rewind};
use gguf::toy::{Toy, VOCABULARY};
use llama::{EngineConfig, LlamaEngine};
use protocol::{SamplerParams, Token};
use scheduler::Request;
use spec::Speculate;

use crate::line::{Ask, Line, assert_plain, cut, engine, pinned, write};
use crate::penalties::WrongAt;
use crate::plain;

/// One of each family: gated delta nets, state spaces alone and beside attention, both in one layer, short convolutions.
const MODELS: [&str; 6] = ["qwen35", "mamba2", "nemotron_h", "falcon-h1", "lfm2", "granitehybrid"];

/// Prompts of less than a chunk and of several, at temperature 0 and above, more of them than there is room for at once.
fn requests() -> Vec<Request> {
    let request = |(n, temperature)| Request {
        sampler: SamplerParams { temperature, repeat_penalty: 1.2, ..SamplerParams::default() },
        seed: n,
        max_tokens: Some(12),
        ignore_eos: true,
        top_logprobs: Some(2),
        ..Request::new((1..=n).map(|at| Token((at * at * 31 % u64::from(VOCABULARY)) as i32)).collect())
    };
    [(5, 0.0), (70, 0.0), (33, 0.8), (1, 0.8), (40, 0.0)].map(request).into()
}

/// A toy in two stages, and the whole one.
fn load(name: &str, undo_rows: u32) -> (Line, LlamaEngine) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = write(Toy::named(name).expect("there is such a toy"), folder.path());
    let config = EngineConfig {
        context: 256,
        n_slots: 3,
        max_rows: 64,
        exact: true,
        undo_rows,
        ..EngineConfig::new("")
    };
    let line = Line::load(&cut(&path, &[3], folder.path()), &config);
    (line, engine(&path, &EngineConfig { n_slots: 1, undo_rows: 0, ..config }))
}

#[test]
fn answers_of_models_with_recurrent_layers_are_the_plain_ones() {
    for name in MODELS {
        let (mut line, mut alone) = load(name, 0);
        let requests = requests();
        let all = line.answer(&Speculate::off(), requests.iter().cloned().map(Ask::from));
        assert_eq!(all.len(), requests.len());
        for (request, heard) in requests.iter().zip(&all) {
            let what = format!("{name}, a prompt of {}", request.prompt.len());
            assert_plain(&heard.answer, &plain::answer(&mut alone, request), &what);
        }
    }
}

/// Windows one at a time, wrong at every place in turn, and others decode between a window and the cut that follows it.
#[test]
fn guesses_within_the_last_call_change_nothing() {
    for name in MODELS
        .into_iter()
        .filter(|name| arch::find(name).expect("it is in the table").rewind == Rewind::Snapshots)
    {
        let (mut line, mut alone) = load(name, 3);
        let requests = requests();
        let plain: Vec<_> = requests.iter().map(|request| plain::answer(&mut alone, request)).collect();
        let (mut drafted, mut accepted) = (0, 0);
        for wrong in 0..12 {
            let asks = requests.iter().zip(&plain).map(|(request, plain)| {
                let text = [&request.prompt[..], &plain.tokens].concat();
                let own = WrongAt { text, at: request.prompt.len() + wrong };
                Ask { request: request.clone(), own: vec![Box::new(own)] }
            });
            let all = line.answer(&pinned("off", 2 + wrong as u32 % 3, 1), asks);
            for ((request, plain), heard) in requests.iter().zip(&plain).zip(&all) {
                let what = format!("{name}, a prompt of {}, wrong at {wrong}", request.prompt.len());
                assert_plain(&heard.answer, plain, &what);
                drafted += heard.timings.drafted;
                accepted += heard.timings.accepted;
            }
        }
        assert!(accepted > 0 && accepted < drafted, "{name}: {accepted} of {drafted}");
    }
}
