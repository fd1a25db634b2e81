//! A line of engines in one process, and where the real models are.

use std::ops::Range;
use std::path::{Path, PathBuf};

use gguf::{Identity, Model, SliceInfo, Source};
use llama::{EngineConfig, LlamaEngine, LoadError};
use protocol::{Position, Token};
use stage::{Engine, Input, Slot, Span, Want};

/// Engines that follow one another, as stages would run them.
pub(crate) struct Line {
    engines: Vec<LlamaEngine>,
}

impl Line {
    /// Loads the files in order, all with this configuration.
    pub(crate) fn load(paths: &[PathBuf], config: &EngineConfig) -> Result<Self, LoadError> {
        let load = |path: &PathBuf| {
            LlamaEngine::load(&EngineConfig { path: path.clone(), ..config.clone() }, &mut |_| ())
        };
        Ok(Self { engines: paths.iter().map(load).collect::<Result<_, _>>()? })
    }

    pub(crate) fn tail(&self) -> &LlamaEngine {
        self.engines.last().expect("a line has a stage")
    }

    pub(crate) fn tail_mut(&mut self) -> &mut LlamaEngine {
        self.engines.last_mut().expect("a line has a stage")
    }

    /// Runs one call through all stages; returns the logits of all rows if they are wanted.
    pub(crate) fn call(&mut self, spans: &[Span], tokens: &[i32]) -> Vec<Vec<f32>> {
        self.run(spans, tokens);
        self.left(spans, Want::Logits).map(|row| self.tail().logits(row).to_vec()).collect()
    }

    /// Runs one call through all stages.
    pub(crate) fn run(&mut self, spans: &[Span], tokens: &[i32]) {
        let tokens: Vec<Token> = tokens.iter().copied().map(Token).collect();
        let (mut rows, mut out) = (Vec::new(), Vec::new());
        for (index, engine) in self.engines.iter_mut().enumerate() {
            let input = if index == 0 { Input::Tokens(&tokens) } else { Input::Rows(&rows, &tokens) };
            engine.run(spans, input, &mut out).expect("the call is well-formed");
            std::mem::swap(&mut rows, &mut out);
        }
    }

    /// The rows of a call that had to leave something behind.
    pub(crate) fn left(&self, spans: &[Span], want: Want) -> impl Iterator<Item = usize> + use<> {
        let wants: Vec<Want> =
            spans.iter().flat_map(|span| std::iter::repeat_n(span.want, span.n_rows)).collect();
        wants.into_iter().enumerate().filter(move |&(_, left)| left == want).map(|(row, _)| row)
    }

    /// Runs tokens in slot 0 from `base` on; the hidden row of each behind the last norm.
    pub(crate) fn hidden(&mut self, base: usize, tokens: &[i32]) -> Vec<Vec<f32>> {
        let spans = [Span { want: Want::Hidden, ..span(0, base, tokens.len(), false) }];
        self.run(&spans, tokens);
        (0..tokens.len()).map(|row| self.tail().hidden(row).to_vec()).collect()
    }

    /// Runs a prompt in slot 0 from position 0 in calls of at most `chunk` rows; logits of the last row.
    pub(crate) fn prefill(&mut self, tokens: &[i32], chunk: usize) -> Vec<f32> {
        self.prefill_from(tokens, 0, chunk)
    }

    /// As [`Line::prefill`]; slot 0 holds the first `from` tokens already.
    pub(crate) fn prefill_from(&mut self, tokens: &[i32], from: usize, chunk: usize) -> Vec<f32> {
        let (last, before) = tokens.split_last().expect("a prompt has a token");
        for (index, chunk_tokens) in before[from..].chunks(chunk).enumerate() {
            self.call(&[span(0, from + index * chunk, chunk_tokens.len(), false)], chunk_tokens);
        }
        self.window(before.len(), &[*last]).remove(0)
    }

    /// Runs tokens in slot 0 from `base` on; logits of every row.
    pub(crate) fn window(&mut self, base: usize, tokens: &[i32]) -> Vec<Vec<f32>> {
        self.call(&[span(0, base, tokens.len(), true)], tokens)
    }

    /// Cuts slot 0 on every stage.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.cut(0, len);
    }

    /// What every stage holds in a slot.
    pub(crate) fn save(&mut self, slot: u16) -> Vec<Vec<u8>> {
        let save = |engine: &mut LlamaEngine| engine.save(Slot(slot)).expect("it holds something");
        self.engines.iter_mut().map(save).collect()
    }

    /// Makes every stage hold in a slot what was saved.
    pub(crate) fn load_saved(&mut self, slot: u16, saved: &[Vec<u8>]) {
        for (engine, bytes) in self.engines.iter_mut().zip(saved) {
            engine.load(Slot(slot), bytes).expect("it was saved here");
        }
    }

    /// Cuts a slot on every stage; false as soon as one says that it cannot.
    pub(crate) fn try_cut(&mut self, slot: u16, len: usize) -> bool {
        let cut = |engine: &mut LlamaEngine| engine.truncate(Slot(slot), Position(len as u32));
        self.engines.iter_mut().all(|engine| cut(engine).is_ok())
    }

    /// Cuts a slot on every stage.
    pub(crate) fn cut(&mut self, slot: u16, len: usize) {
        for engine in &mut self.engines {
            engine.truncate(Slot(slot), Position(len as u32)).expect("it can be cut there");
        }
    }
}

pub(crate) fn span(slot: u16, base: usize, n_rows: usize, want_logits: bool) -> Span {
    Span { slot: Slot(slot), base: Position(base as u32), n_rows, want: Want::logits(want_logits) }
}

/// Cuts a model before these layers and writes the slices; also the largest difference that the cuts may cause.
pub(crate) fn cut(source: &Source<'_>, cuts: &[u32], folder: &Path) -> (Vec<PathBuf>, f32) {
    let plan = gguf::Plan::at_cuts(source, cuts).expect("the cuts are legal");
    let mut tolerance = 0.0_f32;
    let write = |stage: &gguf::PlannedStage| {
        let path = slice(source, stage.range.clone(), folder);
        let info = SliceInfo::read(&Model::open(&path).expect("it was just written")).expect("it is a slice");
        tolerance = tolerance.max(info.tolerance);
        path
    };
    let paths = plan.stages.iter().map(write).collect();
    (paths, tolerance)
}

fn slice(source: &Source<'_>, range: Range<u32>, folder: &Path) -> PathBuf {
    let path = folder.join(format!("{}-{}.gguf", range.start, range.end));
    if !path.exists() {
        gguf::write_slice(source, Identity([0; 32]), range, &path, &mut |_, _| ())
            .expect("the range is legal");
    }
    path
}

/// The largest difference between two sets of logits; infinite where one is not a number.
pub(crate) fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len(), "numbers of rows");
    let pairs = a.iter().zip(b).flat_map(|(a, b)| {
        assert_eq!(a.len(), b.len(), "vocabularies");
        a.iter().zip(b)
    });
    pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, d| if d.is_nan() { f32::INFINITY } else { most.max(d) })
}

pub(crate) fn argmax(logits: &[f32]) -> i32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.expect("there are logits") as i32
}

/// Tokens that look random and never change.
pub(crate) fn tokens(n: usize, n_vocab: usize, seed: u64) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % n_vocab as u64) as i32
    };
    (0..n).map(|_| next()).collect()
}

/// A model that `./run setup` puts into the repository's `models` folder.
pub(crate) fn model(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    assert!(path.exists(), "{} is missing: type ./run setup", path.display());
    path
}

pub(crate) const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub(crate) const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
