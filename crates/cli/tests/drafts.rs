//! A real draft model beside a real line: never another answer, and guesses that are right.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gguf::{Model, Source};
use line::{
    EngineSource, Front, FrontConfig, LinePlan, LineReadiness, LoadError, Node, NodeConfig, StageAddress,
    StageSpec,
};
use llama::{EngineConfig, LlamaEngine, Vocab};
use net::{DialOptions, Heartbeat, Identity, LinkOptions};
use protocol::{DryParams, Generation, Holding, KvType, LayerRange, ModelId, RowDtype, SamplerParams, Token};
use scheduler::{Event, Request, Timings};
use spec::{Reach, Sources, Speculate};
use stage::Engine;

/// No wait in these tests takes longer on a machine that is merely slow.
const PATIENCE: Duration = Duration::from_secs(120);
const CONTEXT: u32 = 512;

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// The model as it is, or as many of its first layers with its head.
fn shallow(n_layers: u32, folder: &Path) -> PathBuf {
    let path = folder.join("shallow.gguf");
    let model = Model::open(&target()).expect("`./run setup` fetches the test model");
    let source = Source::new(&model).expect("it can be cut");
    gguf::write_shallow(&source, n_layers, &path, &mut |_, _| {}).expect("it has as many layers");
    path
}

fn engine(path: &Path) -> Box<dyn Engine> {
    let config = EngineConfig { context: CONTEXT, n_slots: 2, exact: true, ..EngineConfig::new(path) };
    Box::new(LlamaEngine::load(&config, &mut |_| ()).expect("the model can be loaded"))
}

struct Whole;

impl EngineSource for Whole {
    fn load(
        &self,
        _holding: &Holding,
        _progress: &mut dyn FnMut(u16, &str),
    ) -> Result<Box<dyn Engine>, LoadError> {
        Ok(engine(&target()))
    }
}

/// A line of one stage, exact, beside a draft model if one is given.
async fn start(draft: Option<&Path>) -> Front {
    let (identity, mut members) = Identity::ephemeral_cluster(1).expect("keys can be made");
    let node = Node::start(NodeConfig {
        most_prefix_bytes: None,
        store: None,
        identity: members.remove(0),
        source: Arc::new(Whole),
        build: "test".into(),
        dial: DialOptions::default(),
        heartbeat: Heartbeat::default(),
        lease: Duration::ZERO,
    });
    let n_layers = Model::open(&target()).expect("the test model").n_layers();
    let n_vocab = Vocab::load(&target()).expect("it has a vocabulary").n_tokens() as u32;
    let sources = match draft {
        Some(path) => format!("draft={}", path.display()).parse().expect("a list of sources"),
        None => Sources::Off,
    };
    // The line is so short that nothing would be guessed of itself.
    let reach = Reach { width: Some(2), depth: Some(3), ..Reach::default() };
    let config = FrontConfig {
        store: None,
        identity,
        build: "test".into(),
        plan: LinePlan {
            model: ModelId([1; 32]),
            n_layers,
            ranges: vec![LayerRange { start: 0, end: n_layers }],
            narrower: Vec::new(),
            context: CONTEXT,
            n_slots: 2,
            max_rows: 512,
            row_dtype: RowDtype::F32,
            kv: KvType::F16,
            prefix_bytes: 0,
            exact: true,
            swa_full: true,
            undo_rows: 0,
            drafts: false,
        },
        stages: vec![StageSpec { address: StageAddress::Local(node) }],
        spares: Vec::new(),
        lease: Duration::ZERO,
        replan_after: None,
        scheduler: scheduler::Config {
            speculate: Speculate { sources, reach, draft_len: None },
            ..scheduler::Config::new(1, 2, CONTEXT, n_vocab)
        },
        dial: DialOptions::default(),
        heartbeat: Heartbeat::default(),
        // Time to draft in, even where the draft model is as slow as the line.
        local_link: LinkOptions {
            shape: Some("delay=25ms".parse().expect("a shape")),
            ..LinkOptions::default()
        },
        relay: false,
        first_generation: Generation(1),
    };
    let front = match draft {
        Some(path) => Front::start_with(config, engine(path)).expect("a thread can be started"),
        None => Front::start(config),
    };
    let mut changes = front.changes();
    let ready = async {
        while front.readiness() != LineReadiness::Ready {
            changes.changed().await.expect("the front lives");
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.expect("the line is formed in time");
    front
}

/// Greedy, with a temperature, and with everything whose state depends on the text.
fn samplers() -> [SamplerParams; 3] {
    let plain = SamplerParams { temperature: 0.0, ..SamplerParams::default() };
    let warm = SamplerParams { temperature: 0.8, top_p: 0.95, ..plain.clone() };
    let penalised = SamplerParams {
        repeat_penalty: 1.1,
        frequency_penalty: 0.1,
        dry: DryParams { multiplier: 0.8, ..DryParams::default() },
        ..warm.clone()
    };
    [plain, warm, penalised]
}

async fn generate(front: &Front, prompt: &[Token], sampler: SamplerParams) -> (Vec<Token>, Timings) {
    let request =
        Request { sampler, seed: 7, max_tokens: Some(24), ignore_eos: true, ..Request::new(prompt.to_vec()) };
    let (_, mut events) = front.submit(request).expect("the line takes a request");
    let mut answer = Vec::new();
    loop {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time");
        match event.expect("a last event") {
            Event::Started { .. } | Event::Prompt(_) => {}
            Event::Tokens { tokens, .. } => answer.extend(tokens),
            Event::Done { timings, .. } => return (answer, timings),
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

async fn answers(front: &Front) -> Vec<(Vec<Token>, Timings)> {
    let vocab = Vocab::load(&target()).expect("it has a vocabulary");
    let prompt = vocab.tokenize("The steam engine was invented in", true, false).expect("a short text");
    let mut answers = Vec::new();
    for sampler in samplers() {
        answers.push(generate(front, &prompt, sampler).await);
    }
    answers
}

fn same(found: &[(Vec<Token>, Timings)], expected: &[(Vec<Token>, Timings)]) {
    for ((found, _), (expected, _)) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_itself_drafts_without_a_mistake_and_its_first_layers_with_some() {
    let expected = answers(&start(None).await).await;
    assert!(expected.windows(2).all(|pair| pair[0].0 != pair[1].0), "the samplers differ");

    let itself = answers(&start(Some(&target())).await).await;
    same(&itself, &expected);
    for (_, timings) in &itself {
        assert!(timings.accepted > 0, "{timings:?}");
        assert_eq!(timings.epochs, 0, "no draft of the same model with the same noise is wrong");
    }

    let folder = tempfile::tempdir().expect("a temporary folder");
    let first_layers = answers(&start(Some(&shallow(10, folder.path()))).await).await;
    same(&first_layers, &expected);
    let sum = |of: fn(&Timings) -> u32| first_layers.iter().map(|(_, timings)| of(timings)).sum::<u32>();
    assert!(sum(|timings| timings.accepted) > 0 && sum(|timings| timings.epochs) > 0);
}
