//! A front and its stages in one process, in virtual time: the pure cores and the real engines, no links.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gguf::toy::Toy;
use gguf::{Identity, Model, Source};
use llama::{EngineConfig, LlamaEngine, required_tensors};
use protocol::{Position, Report, RowDtype, StageIndex, Verdict};
use scheduler::{Config, Event, Output, Request, RequestId, Scheduler, Timings};
use spec::{Proposer, Reach, Sources, Speculate};
use stage::{Engine, Slot, StageCore};

use crate::plain::Answer;

/// What a call takes here, and each row of it: a wide window pays, as on a machine that is bound by memory.
const CALL: Duration = Duration::from_millis(1);
const ROW: Duration = Duration::from_micros(50);

/// A request, and sources of guesses of its own.
pub(crate) struct Ask {
    pub(crate) request: Request,
    pub(crate) own: Vec<Box<dyn Proposer>>,
}

impl From<Request> for Ask {
    fn from(request: Request) -> Self {
        Self { request, own: Vec::new() }
    }
}

/// How a request went.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) answer: Answer,
    pub(crate) timings: Timings,
}

/// Engines that follow one another.
pub(crate) struct Line {
    pub(crate) engines: Vec<Box<dyn Engine>>,
}

impl Line {
    /// One engine a slice, all loaded with this configuration.
    pub(crate) fn load(paths: &[PathBuf], config: &EngineConfig) -> Self {
        let load = |path: &PathBuf| -> Box<dyn Engine> { Box::new(engine(path, config)) };
        Self { engines: paths.iter().map(load).collect() }
    }

    /// Puts something between the tail and its stage.
    pub(crate) fn wrap_tail(&mut self, wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine>) {
        let tail = self.engines.pop().expect("a line has a tail");
        self.engines.push(wrap(tail));
    }

    /// Answers requests; as many at once as there are slots.
    pub(crate) fn answer(
        &mut self,
        speculate: &Speculate,
        asks: impl IntoIterator<Item = Ask>,
    ) -> Vec<Heard> {
        let mut run = Run::new(self, speculate);
        for Ask { request, own } in asks {
            let id = run.scheduler.submit_with(request, own, run.now).expect("it is taken");
            run.heard.insert(id, Heard::default());
        }
        run.carry();
        while run.compute() {
            run.carry();
        }
        assert_eq!(run.n_open, 0, "the line has stopped before every request was over");
        run.heard.into_values().collect()
    }
}

/// Loads a model or a slice.
pub(crate) fn engine(path: &Path, config: &EngineConfig) -> LlamaEngine {
    let config = EngineConfig { path: path.to_path_buf(), ..config.clone() };
    LlamaEngine::load(&config, &mut |_| ()).expect("the model loads")
}

/// Cuts a model before these layers.
pub(crate) fn cut(path: &Path, cuts: &[u32], folder: &Path) -> Vec<PathBuf> {
    let model = Model::open(path).expect("the model can be read");
    let source = Source::new(&model).expect("its architecture is known");
    let plan = gguf::Plan::at_cuts(&source, cuts).expect("the cuts are legal");
    let write = |stage: &gguf::PlannedStage| {
        let path = folder.join(format!("{}-{}.gguf", stage.range.start, stage.range.end));
        gguf::write_slice(&source, Identity([0; 32]), stage.range.clone(), &path, &mut |_, _| ())
            .expect("the range is legal");
        path
    };
    plan.stages.iter().map(write).collect()
}

/// A toy model with plain attention of so many layers.
pub(crate) fn toy(n_layers: u32, folder: &Path) -> PathBuf {
    write(Toy::named("llama").expect("there is such a toy").layers(n_layers), folder)
}

/// Writes a toy model.
pub(crate) fn write(toy: Toy, folder: &Path) -> PathBuf {
    let (meta, path) = (folder.join("meta.gguf"), folder.join("whole.gguf"));
    toy.write_meta(&meta).expect("the folder can be written");
    toy.write(&required_tensors(&meta).expect("llama.cpp knows it"), &path)
        .expect("the folder can be written");
    path
}

/// Width and depth as given, and these sources.
pub(crate) fn pinned(sources: &str, width: u32, depth: u32) -> Speculate {
    let reach = Reach { width: Some(width), depth: Some(depth), ..Reach::default() };
    Speculate { sources: sources.parse().expect("known sources"), reach, draft_len: None }
}

/// Width and depth as the controller likes.
pub(crate) fn free(sources: &str) -> Speculate {
    let sources: Sources = sources.parse().expect("known sources");
    Speculate { sources, ..Speculate::default() }
}

struct Run<'a> {
    scheduler: Scheduler,
    cores: Vec<StageCore>,
    engines: &'a mut [Box<dyn Engine>],
    now: Duration,
    heard: BTreeMap<RequestId, Heard>,
    n_open: usize,
}

impl<'a> Run<'a> {
    fn new(line: &'a mut Line, speculate: &Speculate) -> Self {
        for engine in &mut line.engines {
            for slot in 0..engine.shape().n_slots {
                engine.truncate(Slot(slot), Position(0)).expect("plain attention can be cut");
            }
        }
        let shape = line.engines[line.engines.len() - 1].shape();
        let usual =
            Config::new(line.engines.len() as u16, shape.n_slots, shape.context, shape.n_vocab as u32);
        let config = Config { queue_limit: 1000, chunk_rows: 32, speculate: speculate.clone(), ..usual };
        let mut scheduler = Scheduler::new(config);
        scheduler.line_up(Duration::ZERO);
        let stage = stage::Config { row_dtype: RowDtype::F32, prefix_bytes: 0, has_store: false };
        Self {
            scheduler,
            cores: line.engines.iter().map(|engine| StageCore::new(engine.shape().clone(), stage)).collect(),
            engines: &mut line.engines,
            now: Duration::ZERO,
            heard: BTreeMap::new(),
            n_open: 0,
        }
    }

    /// The first stage that can compute does. The early ones come first, so that windows that run ahead are computed
    /// there before anybody knows whether they are right.
    fn compute(&mut self) -> bool {
        for (core, engine) in self.cores.iter_mut().zip(self.engines.iter_mut()) {
            if let Some(call) = core.next_call(self.now) {
                self.now += CALL + ROW * call.n_rows() as u32;
                let done = call.execute(engine.as_mut());
                core.complete(done, engine.as_ref(), self.now);
                return true;
            }
        }
        false
    }

    /// Carries everything that anybody has to say to whom it is for.
    fn carry(&mut self) {
        loop {
            let mut said = false;
            while let Some(output) = self.scheduler.poll_output() {
                said = true;
                match output {
                    Output::Work(frame) => self.cores[0].handle_frame(frame, self.now),
                    Output::Hint(hint) => self.cores.iter_mut().for_each(|core| core.handle_hint(hint)),
                    Output::Event(id, event) => self.note(id, event),
                    // No draft model runs here.
                    Output::Draft(..) | Output::Shelved(_) => {}
                }
            }
            for at in 0..self.cores.len() {
                while let Some(output) = self.cores[at].poll_output() {
                    said = true;
                    match output {
                        stage::Output::Forward(frame) => self.cores[at + 1].handle_frame(frame, self.now),
                        stage::Output::Report(report) => self.report(StageIndex(at as u16), report),
                        stage::Output::Store(work) => panic!("there is no store: {work:?}"),
                    }
                }
            }
            if !said {
                return;
            }
        }
    }

    fn report(&mut self, from: StageIndex, report: Report) {
        if let Report::Verdict(verdict) = &report {
            self.note_state(verdict);
        }
        self.scheduler.handle_report(from, report, self.now).expect("honest stages");
    }

    /// The sampler's state is known after a window's last token only.
    fn note_state(&mut self, verdict: &Verdict) {
        let status = self.scheduler.sequences().find(|status| status.seq == verdict.seq);
        let Some(heard) = status.and_then(|status| self.heard.get_mut(&status.request)) else { return };
        let mu = &mut heard.answer.mu;
        mu.resize(mu.len() + verdict.tokens.len() - 1, None);
        mu.push(verdict.mu);
    }

    fn note(&mut self, id: RequestId, event: Event) {
        // Events of what starts at once come before the caller knows the id.
        let heard = self.heard.entry(id).or_default();
        match event {
            Event::Started { .. } => self.n_open += 1,
            Event::Prompt(_) => {}
            Event::Tokens { tokens, logprobs } => {
                heard.answer.tokens.extend(tokens);
                heard.answer.logprobs.extend(logprobs);
            }
            Event::Done { timings, .. } => {
                heard.timings = timings;
                self.n_open -= 1;
            }
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

/// Fails unless an answer is the plain one: tokens, log-probabilities to the bit, and the sampler's state wherever it
/// is known.
pub(crate) fn assert_plain(heard: &Answer, plain: &Answer, what: &str) {
    assert_eq!(heard.tokens, plain.tokens, "{what}");
    let bits = |answer: &Answer| -> VecDeque<_> {
        let bits = |of: &protocol::TokenLogprobs| {
            (of.logprob.to_bits(), of.top.iter().map(|&(token, p)| (token, p.to_bits())).collect::<Vec<_>>())
        };
        answer.logprobs.iter().map(bits).collect()
    };
    assert_eq!(bits(heard), bits(plain), "log-probabilities, {what}");
    for (at, (mu, plain)) in heard.mu.iter().zip(&plain.mu).enumerate() {
        assert!(mu.is_none() || mu == plain, "state {mu:?} instead of {plain:?} after token {at}, {what}");
    }
}
