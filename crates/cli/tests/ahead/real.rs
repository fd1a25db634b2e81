//! The real models: however guesses are made, one text per prompt, and it is the plain one.

use std::path::{Path, PathBuf};

use llama::{EngineConfig, LlamaEngine, Vocab};
use protocol::{SamplerParams, Token};
use scheduler::Request;
use spec::Speculate;

use crate::line::{Line, assert_plain, cut, engine, free, pinned};
use crate::plain;

pub(crate) const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// A model that `./run setup` puts into the repository's `models` folder.
pub(crate) fn model(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    assert!(path.exists(), "{} is missing: type ./run setup", path.display());
    path
}

/// One way to guess.
struct Setting {
    name: String,
    speculate: Speculate,
    /// What the client expects is the plain answer with one token changed.
    predicted: bool,
    /// Alone on the line: in company the controller holds back.
    alone: bool,
}

/// All ways to guess. Another source is another line here.
fn settings() -> Vec<Setting> {
    let setting = |name: String, speculate| Setting { name, speculate, predicted: false, alone: false };
    let mut all = vec![setting("off".into(), Speculate::off())];
    for width in [1, 2, 4, 7] {
        let name = |depth| format!("suffix {width} wide {depth} deep");
        all.extend([1, 2, 4, 8].map(|depth| setting(name(depth), pinned("suffix", width, depth))));
    }
    all.push(Setting { alone: true, ..setting("auto".into(), Speculate::auto()) });
    all.push(Setting { predicted: true, alone: true, ..setting("predicted".into(), free("predicted")) });
    all
}

/// Those that the usual run takes: a serial window, deep and narrow, wide and deep, and what chooses by itself.
const SHARE: [&str; 8] = [
    "off",
    "suffix 1 wide 8 deep",
    "suffix 2 wide 4 deep",
    "suffix 4 wide 2 deep",
    "suffix 7 wide 1 deep",
    "suffix 7 wide 8 deep",
    "auto",
    "predicted",
];

/// How much is tried.
struct Size {
    prompts: usize,
    tokens: u32,
    settings: Vec<Setting>,
    /// Temperatures and settings that were tried before, in their order.
    n_done: usize,
}

/// A wish of whoever runs the tests.
#[expect(clippy::disallowed_methods, reason = "the runner of the tests says how much of them it wants")]
fn wish(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Size {
    /// All of it for a soak, which takes hours: one that was broken off goes on with `PACELINE_SOAK_DONE` settings less.
    fn of(share: (usize, u32), names: &[&str]) -> Self {
        if wish("PACELINE_SOAK").is_some_and(|soak| soak == "1") {
            let n_done = wish("PACELINE_SOAK_DONE").map_or(0, |n| n.parse().expect("a number of settings"));
            return Self { prompts: prompts().len(), tokens: 128, settings: settings(), n_done };
        }
        let chosen = settings().into_iter().filter(|setting| names.contains(&setting.name.as_str()));
        Self { prompts: share.0, tokens: share.1, settings: chosen.collect(), n_done: 0 }
    }
}

/// Texts that go on as they began and texts that do not.
fn prompts() -> Vec<String> {
    let subjects = ["a lighthouse", "the number seven", "rain in spring", "an old clock", "copper wire"];
    let forms = [
        "The cat sat on {}. The cat sat on {}. The cat sat on",
        "def area(width, height):\n    # {}\n    return width * height\n\ndef area(width, height):\n    #",
        "Once upon a time there was {} and",
        "1. {}\n2. {}\n3. {}\n4.",
        "{\"subject\": \"{}\", \"seen\": true}\n{\"subject\": \"{}\", \"seen\": true}\n{\"subject\":",
        "Q: What is {}?\nA:",
        "Copy this line: {} is here.\nCopy: {} is here.\nCopy:",
        "Dear friend, today I want to tell you about {}.",
        "| name | value |\n|---|---|\n| {} | 1 |\n| {} | 2 |\n|",
        "The history of {} begins",
    ];
    let with = |subject: &str| forms.map(|form| form.replace("{}", subject));
    subjects.iter().flat_map(|subject| with(subject)).collect()
}

/// The prompts' requests at temperature 0 and 0.8.
fn requests(vocab: &Vocab, size: &Size, temperature: f32) -> Vec<Request> {
    let request = |(seed, text): (u64, String)| Request {
        sampler: SamplerParams { temperature, ..SamplerParams::default() },
        seed,
        max_tokens: Some(size.tokens),
        ignore_eos: true,
        top_logprobs: Some(1),
        ..Request::new(vocab.tokenize(&text, true, false).expect("a short text"))
    };
    (40..).zip(prompts()).take(size.prompts).map(request).collect()
}

/// The plain answer with one token in its middle changed.
fn edited(tokens: &[Token]) -> Vec<Token> {
    let mut edited = tokens.to_vec();
    let middle = edited.len() / 2;
    edited[middle] = Token(edited[middle].0 ^ 1);
    edited
}

struct Bench {
    line: Line,
    alone: LlamaEngine,
    vocab: Vocab,
    size: Size,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// Two stages that hold four sequences.
    fn new(name: &str, cuts: &[u32], size: Size) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = model(name);
        let config =
            EngineConfig { context: 512, n_slots: 4, max_rows: 64, exact: true, ..EngineConfig::new("") };
        Self {
            line: Line::load(&cut(&path, cuts, folder.path()), &config),
            alone: engine(&path, &EngineConfig { n_slots: 1, ..config }),
            vocab: Vocab::load(&path).expect("it has a tokenizer"),
            size,
            _folder: folder,
        }
    }

    /// Guesses sent and accepted with a setting, all answers being the plain ones.
    fn try_setting(&mut self, at: usize, requests: &[Request], expected: &[plain::Answer]) -> (u32, u32) {
        let Setting { name, speculate, predicted, alone } = &self.size.settings[at];
        let asks = requests.iter().zip(expected).map(|(request, plain)| {
            let prediction = predicted.then(|| edited(&plain.tokens));
            Request { prediction, ..request.clone() }.into()
        });
        let heard = if *alone {
            asks.flat_map(|ask| self.line.answer(speculate, [ask])).collect()
        } else {
            self.line.answer(speculate, asks)
        };
        let mut guesses = (0, 0);
        for (i, (heard, plain)) in heard.iter().zip(expected).enumerate() {
            assert_plain(&heard.answer, plain, &format!("prompt {i}, {name}"));
            guesses = (guesses.0 + heard.timings.drafted, guesses.1 + heard.timings.accepted);
        }
        guesses
    }

    fn every_setting_gives_the_plain_text(&mut self) {
        let n_settings = self.size.settings.len();
        for (turn, temperature) in [0.0, 0.8].into_iter().enumerate() {
            let first = self.size.n_done.saturating_sub(turn * n_settings);
            if first >= n_settings {
                continue;
            }
            let requests = requests(&self.vocab, &self.size, temperature);
            let alone = &mut self.alone;
            let expected: Vec<_> = requests.iter().map(|request| plain::answer(alone, request)).collect();
            for at in first..n_settings {
                let (sent, right) = self.try_setting(at, &requests, &expected);
                let Setting { name, .. } = &self.size.settings[at];
                let guesses = name != "off" && name != "suffix 1 wide 1 deep";
                // Whoever watches a soak sees how far it is.
                let n_done = turn * n_settings + at + 1;
                eprintln!("{n_done}: temperature {temperature}, {name}: {right} of {sent} guesses right");
                assert!(sent >= right && (right > 0) == guesses, "{right} of {sent} guesses right, {name}");
            }
        }
    }
}

#[test]
fn every_way_to_guess_gives_smollm2_the_plain_text() {
    Bench::new(SMOLLM2, &[15], Size::of((4, 32), &SHARE)).every_setting_gives_the_plain_text();
}

#[test]
fn every_way_to_guess_gives_gemma3_the_plain_text() {
    let few = ["suffix 2 wide 4 deep", "auto"];
    Bench::new(GEMMA3, &[7], Size::of((2, 16), &few)).every_setting_gives_the_plain_text();
}
