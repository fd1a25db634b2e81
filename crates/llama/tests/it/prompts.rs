//! What a prompt itself gives, with real models: rows behind the last norm, and log-probabilities of its tokens.

use std::path::PathBuf;
use std::time::Duration;

use gguf::toy::Toy;
use gguf::{Model, Source};
use llama::{EngineConfig, LlamaEngine, required_tensors};
use protocol::{
    Chunk, Found, Frame, OfPrompt, Open, Pooling, Position, Report, RowDtype, SamplerParams, SeqId, Token,
    TokenLogprobs, Work,
};
use stage::{Config, Engine, Output, Span, StageCore, Want, logprobs};
use tempfile::TempDir;

use crate::models::prompt;
use crate::support::{GEMMA3, Line, SMOLLM2, cut, difference, model, span};

fn exact() -> EngineConfig {
    EngineConfig { context: 512, max_rows: 160, exact: true, ..EngineConfig::new("") }
}

/// A model whole, and cut before these layers in two ways.
fn lines(name: &str, cuts: [&[u32]; 2], folders: &[TempDir; 2]) -> [Vec<PathBuf>; 3] {
    let path = model(name);
    let file = Model::open(&path).expect("the model opens");
    let source = Source::new(&file).expect("it can be cut");
    let [two, three] = [0, 1].map(|at| cut(&source, cuts[at], folders[at].path()).0);
    [vec![path], two, three]
}

/// Stages over real engines, one after another, each frame as soon as the one before is through.
struct Stages(Vec<(StageCore, LlamaEngine)>);

impl Stages {
    fn load(paths: &[PathBuf], config: &EngineConfig) -> Self {
        let load = |path: &PathBuf| {
            let config = EngineConfig { path: path.clone(), ..config.clone() };
            let engine = LlamaEngine::load(&config, &mut |_| ()).expect("the slice loads");
            let config = Config { row_dtype: RowDtype::F32, prefix_bytes: 0, has_store: false };
            (StageCore::new(engine.shape().clone(), config), engine)
        };
        Self(paths.iter().map(load).collect())
    }

    /// What the tail reports of a frame.
    fn send(&mut self, frame: Frame) -> Vec<Report> {
        let mut reports = Vec::new();
        let mut frames = vec![frame];
        for (core, engine) in &mut self.0 {
            frames.drain(..).for_each(|frame| core.handle_frame(frame, Duration::ZERO));
            while let Some(call) = core.next_call(Duration::ZERO) {
                let done = call.execute(engine);
                core.complete(done, engine, Duration::ZERO);
            }
            for output in std::iter::from_fn(|| core.poll_output()) {
                match output {
                    Output::Forward(frame) => frames.push(frame),
                    Output::Report(report) => reports.push(report),
                    Output::Store(work) => panic!("{work:?}"),
                }
            }
        }
        reports
    }

    /// What a whole prompt gives, cut into chunks of this length.
    fn ask(
        &mut self,
        seq: u64,
        text: &[i32],
        of_prompt: OfPrompt,
        chunk: usize,
    ) -> (Vec<f32>, Vec<TokenLogprobs>) {
        let seq = SeqId(seq);
        let open = Open {
            seq,
            start: Position(0),
            reuse: None,
            held: None,
            seed: 0,
            choice: 0,
            sampler: SamplerParams::default(),
            limit: Position(text.len() as u32),
            ignore_eos: false,
            top_logprobs: None,
            of_prompt: Some(of_prompt),
            history: Vec::new(),
        };
        let mut reports = self.send(Frame::new(Work::Open(Box::new(open))));
        let text: Vec<Token> = text.iter().copied().map(Token).collect();
        for (at, tokens) in text.chunks(chunk).enumerate() {
            let (base, follows) =
                (Position((at * chunk) as u32), text.get(at * chunk + tokens.len()).copied());
            let chunk = Chunk { seq, base, tokens: tokens.to_vec(), follows };
            reports.extend(self.send(Frame::new(Work::Chunk(chunk))));
        }
        let inputs = Position(text.len() as u32);
        reports.extend(self.send(Frame::new(Work::Close(protocol::Close { seq, inputs }))));
        let (mut values, mut logprobs) = (Vec::new(), Vec::new());
        for report in reports {
            match report {
                Report::Prompt(part) => match part.found {
                    Found::Rows(rows) => values.extend(rows.values),
                    Found::Logprobs(found) => logprobs.extend(found),
                },
                Report::Progress(_) | Report::Closed(_) => {}
                other => panic!("{other:?}"),
            }
        }
        (values, logprobs)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The output matrix times a row is the row's logits, so it is the row that should be meant.
#[test]
fn logits_are_the_output_matrix_times_the_hidden_row() {
    let folder = tempfile::tempdir().unwrap();
    let (meta, path) = (folder.path().join("meta.gguf"), folder.path().join("whole.gguf"));
    let toy = Toy::named("llama").unwrap();
    toy.write_meta(&meta).unwrap();
    toy.write(&required_tensors(&meta).unwrap(), &path).unwrap();
    let file = Model::open(&path).unwrap();
    let tensor = file.tensor("output.weight").or_else(|| file.tensor("token_embd.weight")).unwrap();
    let weights: Vec<f32> = file
        .read_tensor(tensor)
        .unwrap()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let mut line = Line::load(std::slice::from_ref(&path), &EngineConfig::new("")).unwrap();
    let tokens = crate::support::tokens(9, 512, 3);
    let hidden = line.hidden(0, &tokens);
    line.truncate(0);
    let logits = line.window(0, &tokens);
    let product = |row: &Vec<f32>| -> Vec<f32> {
        weights.chunks_exact(row.len()).map(|w| w.iter().zip(row).map(|(w, x)| w * x).sum()).collect()
    };
    let products: Vec<Vec<f32>> = hidden.iter().map(product).collect();
    let largest = logits.iter().flatten().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    let error = difference(&products, &logits) / largest;
    assert!(error < 1e-4, "{error}");
}

#[test]
fn every_cut_and_every_chunk_give_the_same_embeddings_to_the_bit() {
    for (name, cuts) in [(SMOLLM2, [&[15][..], &[10, 20][..]]), (GEMMA3, [&[7], &[6, 12]])] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let text = prompt(name, 48);
        let mut plain = Line::load(&[model(name)], &exact()).unwrap();
        let rows: Vec<Vec<f32>> = (0..48).map(|at| plain.hidden(at, &text[at..=at]).remove(0)).collect();
        let width = rows[0].len();
        let sum = |at: usize| rows.iter().map(|row| f64::from(row[at])).sum::<f64>();
        let mean: Vec<f32> = (0..width).map(|at| (sum(at) / 48.0) as f32).collect();
        let expected = [
            (Pooling::None, rows.concat()),
            (Pooling::Mean, mean),
            (Pooling::First, rows[0].clone()),
            (Pooling::Last, rows[47].clone()),
        ];
        for (paths, chunk) in lines(name, cuts, &folders).iter().zip([48, 7, 20]) {
            let mut stages = Stages::load(paths, &exact());
            for (seq, (pooling, expected)) in (1..).zip(&expected) {
                let (found, _) = stages.ask(seq, &text, OfPrompt::Embedding(*pooling), chunk);
                assert_eq!(bits(&found), bits(expected), "{name} {pooling:?} in {} stages", paths.len());
            }
        }
    }
}

#[test]
fn a_prompts_log_probabilities_are_those_of_decoding_it_token_by_token() {
    for (name, cuts) in [(SMOLLM2, [&[15][..], &[10, 20][..]]), (GEMMA3, [&[7], &[6, 12]])] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let text = prompt(name, 32);
        let mut plain = Line::load(&[model(name)], &exact()).unwrap();
        let score = |at: usize| {
            let logits = plain.window(at, &text[at..=at]).remove(0);
            logprobs::of(&logits, Token(text[at + 1]), 3)
        };
        let expected: Vec<TokenLogprobs> = (0..31).map(score).collect();
        for (paths, chunk) in lines(name, cuts, &folders).iter().zip([32, 5, 16]) {
            let mut stages = Stages::load(paths, &exact());
            let (_, found) = stages.ask(1, &text, OfPrompt::Logprobs { top: 3 }, chunk);
            assert_eq!(found, expected, "{name} in {} stages, chunks of {chunk}", paths.len());
        }
    }
}

#[test]
fn who_embeds_and_who_generates_in_one_call_do_not_feel_each_other() {
    let text = prompt(SMOLLM2, 24);
    let config = EngineConfig { n_slots: 2, ..exact() };
    let want = |slot: u16, base: usize, want| Span { want, ..span(slot, base, 1, false) };
    let mut alone = Line::load(&[model(SMOLLM2)], &config).unwrap();
    let hidden: Vec<Vec<f32>> = (0..24).map(|at| alone.hidden(at, &text[at..=at]).remove(0)).collect();
    alone.truncate(0);
    let logits: Vec<Vec<f32>> = (0..24).map(|at| alone.window(at, &text[at..=at]).remove(0)).collect();
    let mut both = Line::load(&[model(SMOLLM2)], &config).unwrap();
    for at in 0..24 {
        let order = [[Want::Logits, Want::Hidden], [Want::Hidden, Want::Logits]][at % 2];
        // The slots change places, but each reads the same text: what a row leaves behind is all that differs.
        let spans = [want(0, at, order[0]), want(1, at, order[1])];
        both.run(&spans, &[text[at], text[at]]);
        let tail = both.tail();
        assert_eq!(bits(tail.logits(at % 2)), bits(&logits[at]), "logits at {at}");
        assert_eq!(bits(tail.hidden(1 - at % 2)), bits(&hidden[at]), "hidden row at {at}");
    }
}
