//! The state that all handlers share: the line, the model once it is known, and the configuration.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use protocol::Token;
use tokio::sync::Semaphore;

use crate::auth::ApiKeys;
use crate::cors::Cors;
use crate::drain::{Drain, Running};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::responses::Store;
use crate::roll::Roll;
use crate::shared::SharedPrompts;
use crate::template::sandbox::{SameProcess, TemplateHost};
use crate::template::{ChatTemplate, TemplateError};
use crate::trace::Tracing;
use crate::{Line, ModelInfo, Readiness, Tokenizer, limits};

/// The name that every model answers to besides its own.
const DEFAULT_MODEL: &str = "default";

/// How the API behaves.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Keys that requests must carry; `None` lets everyone in.
    pub api_keys: Option<ApiKeys>,
    /// Which web pages of other origins may call the API.
    pub cors: Cors,
    /// Bytes in a body at most.
    pub max_body_bytes: usize,
    /// Between two keep-alive comments on a silent stream.
    pub keep_alive: Duration,
    /// Whether and how requests are traced.
    pub tracing: Option<Tracing>,
    /// System prompts whose computed beginnings serve everybody, whatever key they have.
    pub shared_prompts: Vec<String>,
    /// Who runs the model's chat template.
    pub templates: Arc<dyn TemplateHost>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            api_keys: None,
            cors: Cors::Off,
            max_body_bytes: limits::MAX_BODY_BYTES,
            keep_alive: limits::KEEP_ALIVE,
            tracing: None,
            shared_prompts: Vec::new(),
            templates: Arc::new(SameProcess::default()),
        }
    }
}

/// The API's state. Clones share it. The model may come later: until then requests get 503.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    line: Arc<dyn Line>,
    config: ApiConfig,
    metrics: Arc<Metrics>,
    responses: Arc<Store>,
    grammar_places: Arc<Semaphore>,
    drain: Arc<Drain>,
    roll: Arc<Roll>,
    watchers: Arc<Semaphore>,
    model: OnceLock<Arc<Model>>,
}

/// The model, ready for use.
pub(crate) struct Model {
    pub info: ModelInfo,
    pub tokenizer: Arc<dyn Tokenizer>,
    /// A template that cannot be read only concerns chats.
    pub template: Result<ChatTemplate, TemplateError>,
    /// Special tokens whose text says how to read a turn, ascending.
    pub marks: Arc<[Token]>,
    /// What everybody may begin with.
    pub shared: SharedPrompts,
}

/// An API serves one model for its whole life, and knows how its chats are written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelNotSet {
    /// Another one is there.
    #[error("the API has its model already")]
    Already,
    /// Whoever runs templates does not, so that nothing is known of this one.
    #[error("chat templates cannot be run on this machine: {0}")]
    NoTemplates(String),
}

impl Api {
    /// An API over a line whose model is not known yet.
    #[must_use]
    pub fn new(line: Arc<dyn Line>, config: ApiConfig) -> Self {
        let metrics = Arc::new(Metrics::new());
        let grammar_places = Arc::new(Semaphore::new(limits::GRAMMAR_PLACES));
        Self(Arc::new(Inner {
            line,
            config,
            metrics,
            responses: Arc::default(),
            grammar_places,
            drain: Arc::default(),
            roll: Arc::default(),
            watchers: Arc::new(Semaphore::new(limits::MAX_WATCHERS)),
            model: OnceLock::new(),
        }))
    }

    /// Gives the API its model. Blocks until its chat template has been looked at.
    ///
    /// # Errors
    /// If it has one, or if no template can be run.
    pub fn set_model(&self, info: ModelInfo, tokenizer: Arc<dyn Tokenizer>) -> Result<(), ModelNotSet> {
        let template = ChatTemplate::new(info.chat_template.as_deref(), Arc::clone(&self.0.config.templates));
        if let Err(TemplateError::NotRun(why)) = template {
            return Err(ModelNotSet::NoTemplates(why));
        }
        if let Err(error) = &template {
            tracing::warn!(model = %info.id, %error, "chats will be refused");
        }
        let mut marks = Vec::new();
        for mark in template.iter().flat_map(|template| template.syntax().marks()) {
            if let [token] = tokenizer.tokenize(mark, false, true)[..] {
                marks.push(token);
            }
        }
        marks.sort_unstable();
        let shared = SharedPrompts::default();
        let mut model = Model { info, tokenizer, template, marks: marks.into(), shared };
        model.shared = SharedPrompts::new(&self.0.config.shared_prompts, &model);
        self.0.model.set(Arc::new(model)).map_err(|_| ModelNotSet::Already)
    }

    pub(crate) fn line(&self) -> &dyn Line {
        self.0.line.as_ref()
    }

    pub(crate) fn config(&self) -> &ApiConfig {
        &self.0.config
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(crate) fn responses(&self) -> &Arc<Store> {
        &self.0.responses
    }

    /// Where grammars are looked at.
    pub(crate) fn grammar_places(&self) -> Arc<Semaphore> {
        self.0.grammar_places.clone()
    }

    /// Who waits, runs and has ended.
    pub(crate) fn roll(&self) -> &Arc<Roll> {
        &self.0.roll
    }

    /// Places of those who watch the line.
    pub(crate) fn watchers(&self) -> Arc<Semaphore> {
        self.0.watchers.clone()
    }

    /// Resolves when the server stops and no request runs. Cancel safe.
    pub(crate) async fn stopped(&self) {
        self.0.drain.over().await;
    }

    /// Takes no more requests from now on, and says so.
    pub fn close(&self) {
        self.0.drain.close();
    }

    /// Resolves when no request runs. Cancel safe.
    pub async fn idle(&self) {
        self.0.drain.idle().await;
    }

    /// Ends the requests that still run, each with an error that says why.
    pub fn end(&self) {
        self.0.drain.end();
    }

    /// Counts one more generation.
    pub(crate) fn enter(&self) -> Result<Running, ApiError> {
        self.0.drain.enter()
    }

    /// Whether requests can be answered now.
    pub(crate) fn ready(&self) -> Result<&Arc<Model>, ApiError> {
        self.check(|_| false)
    }

    /// Whether requests are taken: they are answered now, or as soon as a line that was lost is formed anew.
    pub(crate) fn open(&self) -> Result<&Arc<Model>, ApiError> {
        self.check(|takes_requests| takes_requests)
    }

    fn check(&self, may_wait: impl Fn(bool) -> bool) -> Result<&Arc<Model>, ApiError> {
        self.0.drain.check()?;
        match self.0.line.readiness() {
            Readiness::NotReady { reason, progress, takes_requests } if !may_wait(takes_requests) => {
                Err(ApiError::NotReady { reason, progress })
            }
            Readiness::Ready | Readiness::NotReady { .. } => self.model(),
        }
    }

    /// The model, whether or not the line can run it now.
    pub(crate) fn model(&self) -> Result<&Arc<Model>, ApiError> {
        self.0
            .model
            .get()
            .ok_or_else(|| ApiError::NotReady { reason: "the model is being read".into(), progress: None })
    }
}

impl Model {
    /// Whether a request for `asked` is a request for this model.
    pub(crate) fn answers_to(&self, asked: &str) -> Result<(), ApiError> {
        if asked == self.info.id || asked == DEFAULT_MODEL {
            return Ok(());
        }
        Err(ApiError::UnknownModel { asked: asked.into(), ours: self.info.id.clone() })
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("config", &self.0.config).finish_non_exhaustive()
    }
}
