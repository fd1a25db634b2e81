//! Models with recurrent layers decode one token after the other, many answers at once, and each is the plain one.

use gguf::toy::{Toy, VOCABULARY};
use llama::EngineConfig;
use protocol::{SamplerParams, Token};
use scheduler::Request;
use spec::Speculate;

use crate::line::{Ask, Line, assert_plain, cut, engine, write};
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

#[test]
fn answers_of_models_with_recurrent_layers_are_the_plain_ones() {
    for name in MODELS {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = write(Toy::named(name).expect("there is such a toy"), folder.path());
        let config =
            EngineConfig { context: 256, n_slots: 3, max_rows: 64, exact: true, ..EngineConfig::new("") };
        let mut line = Line::load(&cut(&path, &[3], folder.path()), &config);
        let mut alone = engine(&path, &EngineConfig { n_slots: 1, ..config });
        let requests = requests();
        let all = line.answer(&Speculate::off(), requests.iter().cloned().map(Ask::from));
        assert_eq!(all.len(), requests.len());
        for (request, heard) in requests.iter().zip(&all) {
            let what = format!("{name}, a prompt of {}", request.prompt.len());
            assert_plain(&heard.answer, &plain::answer(&mut alone, request), &what);
        }
    }
}
