//! One choice in the making: its request on the line and the text that comes of it.

use std::sync::Arc;
use std::time::Duration;

use protocol::{Found, Token, TokenLogprobs};
use scheduler::{Event, Finish, Request, RequestId, Timings};
use tokio::time::timeout;
use uuid::Uuid;

use crate::answer::{AnswerText, Piece, TokenInfo};
use crate::api::{Api, Model};
use crate::drain::Running;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::progress::{Pieces, Progress};
use crate::request::{Options, Prompt};
use crate::roll::Listed;
use crate::shared::SharedPrompt;
use crate::trace::ChoiceTrace;
use crate::turn::{Part, Reading, Turn};
use crate::{Submission, limits, prompt, structured};

/// What a generation gives, in order: how far the prompt is, if that is asked for; any number of deltas; its end.
#[derive(Debug)]
pub(crate) enum Step {
    Progress(Progress),
    Delta(Delta),
    End(Box<Ending>),
}

/// More of a turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    /// Of the prompt's tokens but the first, if asked for; before anything of the answer.
    pub prompt: Option<Vec<TokenLogprobs>>,
    pub parts: Vec<Part>,
    /// Of the tokens whose text begins here, if asked for.
    pub logprobs: Vec<TokenInfo>,
}

impl Delta {
    pub(crate) const fn is_empty(&self) -> bool {
        self.prompt.is_none() && self.parts.is_empty() && self.logprobs.is_empty()
    }
}

/// How a generation ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    /// What was held back.
    pub delta: Delta,
    /// OpenAI's word for why: `stop`, `length` or `tool_calls`.
    pub finish: &'static str,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// Prompt tokens that were resident already.
    pub cached: u32,
    /// Tokens of the answer, including one that ended it.
    pub completion: u32,
    /// Of those, tokens of reasoning; exact but for those that came together with the reasoning's end.
    pub reasoning: u32,
    /// The line's figures, unless it kept them to itself.
    pub timings: Option<Timings>,
}

/// Prompts and how to go on from them.
pub(crate) struct Job<'a> {
    pub prompts: Vec<Vec<Token>>,
    pub options: &'a Options,
    /// The field that the prompts came from.
    pub param: &'static str,
    pub reading: Reading,
}

/// A request on the line, as text. Dropping it cancels the request.
pub(crate) struct Generation {
    submission: Submission,
    running: Running,
    listed: Listed,
    text: AnswerText,
    turn: Turn,
    /// What is known of the prompt, until all that is wanted is.
    prompt: Option<Awaited>,
    /// The prompt on its way, until the first token is there, if somebody wants to see it.
    pieces: Option<Pieces>,
    n_prompt: u32,
    /// Parts and log-probabilities that have not gone out.
    ready: Delta,
    metrics: Arc<Metrics>,
    cached: u32,
    /// What it begins with that everybody may share.
    shared: Option<Arc<SharedPrompt>>,
    reasoning: u32,
    queued: Duration,
    /// Where it is noted how it went. Behind the submission: what it says when it is dropped is noted, too.
    traced: Option<ChoiceTrace>,
    ended: bool,
}

/// Log-probabilities of a prompt, as they come.
struct Awaited {
    found: Vec<TokenLogprobs>,
    /// How many there will be.
    n: usize,
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            self.metrics.stopped("cancelled");
        }
    }
}

/// Submits every choice of every prompt, prompts first. If one is refused the others are cancelled.
pub(crate) async fn start(api: &Api, model: &Arc<Model>, job: Job<'_>) -> Result<Vec<Generation>, ApiError> {
    let Job { prompts, options, param, reading } = job;
    let mut sampler = options.sampler.clone();
    if let Some(form) = &options.form {
        sampler.grammar = structured::check(api, model, form).await?;
    }
    let seed = options.seed.unwrap_or_else(draw_seed);
    let marks: Arc<[Token]> = if reading.syntax.is_some() { model.marks.clone() } else { Arc::new([]) };
    let expected = options.prediction.as_deref();
    let prediction = expected.map(|text| model.tokenizer.tokenize(text, false, false));
    let namespace = options.cache.as_ref().map(|cache| options.caller.namespace(cache.name.as_deref()));
    let mut generations = Vec::with_capacity(prompts.len() * options.n as usize);
    for prompt in &prompts {
        let shared = model.shared.of(prompt).filter(|_| namespace.is_some());
        if let Some(shared) = shared {
            shared.prepare(api, options.caller.client(), options.priority).await;
        }
        for choice in 0..options.n {
            let request = Request {
                prompt: prompt.clone(),
                sampler: sampler.clone(),
                seed,
                choice,
                max_tokens: options.max_tokens,
                ignore_eos: options.ignore_eos,
                top_logprobs: options.top_logprobs,
                of_prompt: options.of_prompt,
                client: options.caller.client(),
                priority: options.priority,
                namespace,
                prediction: prediction.clone(),
            };
            let running = api.enter()?;
            let traced =
                options.trace.as_ref().map(|trace| trace.choice(&model.info.id, || shown(model, prompt)));
            let journal = traced.as_ref().map(ChoiceTrace::journal);
            let pieces = options.progress.then(|| Pieces::on(api.line()));
            let submission = api
                .line()
                .submit(request, journal)
                .await
                .map_err(|refusal| ApiError::refused(refusal, param))?;
            let tokenizer = model.tokenizer.clone();
            let (turn, parts) = Turn::new(&reading, Uuid::new_v4().simple().to_string());
            let listed =
                api.roll().enter(submission.id(), options.caller, prompt.len() as u32, options.max_tokens);
            generations.push(Generation {
                submission,
                listed,
                running,
                text: AnswerText::new(tokenizer, options.stops.clone(), options.ignore_eos, marks.clone()),
                turn,
                prompt: options
                    .of_prompt
                    .map(|_| Awaited { found: Vec::new(), n: prompt.len().saturating_sub(1) }),
                pieces,
                n_prompt: prompt.len() as u32,
                ready: Delta { parts, ..Delta::default() },
                metrics: api.metrics().clone(),
                cached: 0,
                shared: shared.map(Arc::clone),
                reasoning: 0,
                queued: Duration::ZERO,
                traced,
                ended: false,
            });
        }
    }
    Ok(generations)
}

/// Waits for one more piece of a prompt; for ever if nobody wants to see them.
async fn through(pieces: &mut Option<Pieces>, id: RequestId) -> (u32, Duration) {
    match pieces {
        Some(pieces) => pieces.next(id).await,
        None => std::future::pending().await,
    }
}

/// A prompt as people read it.
pub(crate) fn shown(model: &Model, prompt: &[Token]) -> String {
    prompt::shown(model, &Prompt::Tokens(prompt.to_vec()))
}

/// 64 bits from the operating system: the fixed bits of a version 4 UUID lie at different places in its halves.
pub(crate) fn draw_seed() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}

impl Generation {
    /// The next step; `None` after the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Step>, ApiError> {
        while !self.ended {
            let id = self.submission.id();
            let event = tokio::select! {
                biased;
                event = self.submission.next() => event,
                error = self.running.over() => return Err(self.fail("failed", error)),
                (done, took) = through(&mut self.pieces, id) => return Ok(Some(self.progress(done, took))),
            };
            match event {
                Some(Event::Started { cached, queued }) => {
                    (self.cached, self.queued) = (cached, queued);
                    if let Some(shared) = self.shared.take() {
                        shared.served(cached, self.n_prompt as usize);
                    }
                    if let Some(delta) = self.take_prompt() {
                        return Ok(Some(Step::Delta(delta)));
                    }
                    if self.pieces.is_some() {
                        return Ok(Some(self.progress(cached, Duration::ZERO)));
                    }
                }
                Some(Event::Prompt(found)) => {
                    if let (Some(awaited), Found::Logprobs(logprobs)) = (&mut self.prompt, found) {
                        awaited.found.extend(logprobs);
                    }
                    if let Some(delta) = self.take_prompt() {
                        return Ok(Some(Step::Delta(delta)));
                    }
                }
                Some(Event::Tokens { tokens, logprobs }) => {
                    self.pieces = None;
                    let (piece, stopped) = self.text.push(&tokens, logprobs);
                    self.hear(piece);
                    if self.turn.is_reasoning() {
                        self.reasoning += tokens.len() as u32;
                    }
                    if stopped || self.turn.is_over() {
                        let timings = self.call_off().await;
                        return Ok(Some(self.end("stop", timings)));
                    }
                    if !self.ready.parts.is_empty() {
                        return Ok(Some(Step::Delta(std::mem::take(&mut self.ready))));
                    }
                }
                Some(Event::Done { finish, timings }) => {
                    let (piece, stopped) = self.text.finish();
                    self.hear(piece);
                    let finish = match finish {
                        Finish::Cancelled => {
                            self.listed.ended("cancelled", self.queued, Some(&timings));
                            return Err(self.fail("cancelled", ApiError::Cancelled));
                        }
                        Finish::Length if !stopped => "length",
                        Finish::Length | Finish::Stop => "stop",
                    };
                    return Ok(Some(self.end(finish, Some(timings))));
                }
                Some(Event::Failed(failure)) => return Err(self.fail("failed", failure.into())),
                None => {
                    let error = ApiError::Internal("the line gave up the request without a word".into());
                    return Err(self.fail("failed", error));
                }
            }
        }
        Ok(None)
    }

    /// So many tokens of the prompt are through.
    fn progress(&self, done: u32, took: Duration) -> Step {
        Step::Progress(Progress { total: self.n_prompt, cached: self.cached, done, took })
    }

    /// The prompt's log-probabilities, once all of them are here.
    fn take_prompt(&mut self) -> Option<Delta> {
        let Awaited { found, .. } = self.prompt.take_if(|awaited| awaited.found.len() >= awaited.n)?;
        let ready = std::mem::take(&mut self.ready);
        Some(Delta { prompt: Some(found), ..ready })
    }

    fn fail(&mut self, reason: &'static str, error: ApiError) -> ApiError {
        self.ended = true;
        self.finished(reason);
        self.listed.ended(reason, self.queued, None);
        self.metrics.stopped(reason);
        error
    }

    fn hear(&mut self, piece: Piece) {
        if let Some(traced) = &self.traced {
            traced.said(&piece.text);
        }
        self.turn.push(&piece.text, &mut self.ready.parts);
        self.ready.logprobs.extend(piece.logprobs);
    }

    fn finished(&self, finish: &'static str) {
        if let Some(traced) = &self.traced {
            traced.finished(finish);
        }
    }

    fn end(&mut self, finish: &'static str, timings: Option<Timings>) -> Step {
        self.ended = true;
        let calls = self.turn.n_calls() > 0 && (finish == "stop" || !self.turn.is_in_call());
        self.turn.finish(&mut self.ready.parts);
        let finish = if calls { "tool_calls" } else { finish };
        self.finished(finish);
        self.listed.ended(finish, self.queued, timings.as_ref());
        match &timings {
            Some(timings) => self.metrics.ended(finish, self.queued, timings),
            None => self.metrics.stopped(finish),
        }
        Step::End(Box::new(Ending {
            delta: std::mem::take(&mut self.ready),
            finish,
            stop: self.text.stop().map(str::to_owned),
            cached: self.cached,
            completion: self.text.n_tokens(),
            reasoning: self.reasoning,
            timings,
        }))
    }

    /// The text is complete: cancels the request and waits for the line's last word on it.
    async fn call_off(&mut self) -> Option<Timings> {
        self.submission.cancel();
        let last_word = async {
            loop {
                match self.submission.next().await {
                    Some(Event::Started { .. } | Event::Prompt(_) | Event::Tokens { .. }) => {}
                    Some(Event::Done { timings, .. }) => return Some(timings),
                    Some(Event::Failed(_)) | None => return None,
                }
            }
        };
        timeout(limits::CANCEL_WAIT, last_word).await.ok().flatten()
    }
}
