//! The JSON of OpenAI's answers, whole and in chunks, in the forms of chats and of completions.

use std::sync::Arc;
use std::time::Duration;

use protocol::TokenLogprobs;
use scheduler::Timings;
use serde_json::{Value, json};

use crate::answer::TokenInfo;
use crate::error::ApiError;
use crate::generation::{Delta, Ending};
use crate::legacy::{self, Echo, Entry};
use crate::stream::{Call, Frame, Message, Wire};
use crate::turn::Part;
use crate::{SourceStatus, Tokenizer, WindowStatus, logprobs};

/// Which API an answer is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// With calls as OpenAI had them before tools, if `functions`.
    Chat { functions: bool },
    /// `echo` holds what every choice begins with, one per prompt; empty for none.
    Completion { echo: Vec<Echo> },
}

/// What all parts of one answer share.
pub(crate) struct Reply {
    pub form: Form,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub fingerprint: String,
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Choices per prompt; the choices of a prompt lie side by side.
    pub n: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: Vec<u32>,
    pub top_logprobs: Option<u8>,
    /// Streams end with their usage.
    pub include_usage: bool,
}

/// A reply as a stream.
pub(crate) struct ReplyStream {
    reply: Reply,
    usage: Usage,
    /// Calls begun so far, by choice.
    calls: Vec<usize>,
}

impl ReplyStream {
    pub(crate) const fn new(reply: Reply) -> Self {
        Self { reply, usage: Usage { cached: 0, completion: 0, reasoning: 0 }, calls: Vec::new() }
    }
}

impl Wire for ReplyStream {
    fn open(&mut self, n: usize) -> Vec<Frame> {
        self.calls = vec![0; n];
        (0..n).filter_map(|index| self.reply.opening(index)).map(|chunk| Frame::data(&chunk)).collect()
    }

    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Frame> {
        let Delta { prompt, mut parts, logprobs } = delta;
        if parts.is_empty() && (prompt.is_none() || !logprobs.is_empty()) {
            parts.push(Part::Text(String::new()));
        }
        let mut frames = Vec::with_capacity(parts.len() + 1);
        if let Some(chunk) = prompt.and_then(|prompt| self.reply.echoed(index, &prompt)) {
            frames.push(Frame::data(&chunk));
        }
        let mut logprobs = self.reply.logprobs(index, None, &logprobs).filter(|_| !logprobs.is_empty());
        for part in parts {
            self.calls[index] += usize::from(matches!(part, Part::Call { .. }));
            let chunk = self.reply.delta(index, part, self.calls[index], logprobs.take());
            frames.push(Frame::data(&chunk));
        }
        frames
    }

    fn end(&mut self, index: usize, ending: &Ending) -> Vec<Frame> {
        self.usage.add(&self.reply, index, ending);
        vec![Frame::data(&self.reply.closing(index, ending))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::data(&error.body())]
    }

    fn close(&mut self) -> Vec<Frame> {
        let done = Frame { event: None, data: "[DONE]".into() };
        if self.reply.include_usage {
            vec![Frame::data(&self.reply.usage_chunk(self.usage)), done]
        } else {
            vec![done]
        }
    }
}

/// Tokens of all choices so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    cached: u32,
    completion: u32,
    reasoning: u32,
}

impl Usage {
    /// Counts a choice. A prompt counts once, and what was resident for its first choice is what it saved.
    fn add(&mut self, reply: &Reply, index: usize, ending: &Ending) {
        self.completion += ending.completion;
        self.reasoning += ending.reasoning;
        if index.is_multiple_of(reply.n) {
            self.cached += ending.cached;
        }
    }
}

impl Reply {
    /// The chunk that opens a choice, if the form has one.
    fn opening(&self, index: usize) -> Option<Value> {
        match &self.form {
            Form::Chat { .. } => {
                let choice = json!({
                    "index": index,
                    "delta": { "role": "assistant", "content": "" },
                    "finish_reason": null,
                });
                Some(self.chunk(vec![choice]))
            }
            // With log-probabilities it waits for those of the prompt.
            Form::Completion { .. } if self.top_logprobs.is_some() => None,
            Form::Completion { .. } => {
                Some(self.delta(index, Part::Text(self.echo(index)?.text.clone()), 0, None))
            }
        }
    }

    /// The chunk that opens a choice with its prompt and the log-probabilities of that.
    fn echoed(&self, index: usize, prompt: &[TokenLogprobs]) -> Option<Value> {
        let logprobs = self.logprobs(index, Some(prompt), &[])?;
        Some(self.delta(index, Part::Text(self.echo(index)?.text.clone()), 0, Some(logprobs)))
    }

    /// What a choice begins with.
    fn echo(&self, index: usize) -> Option<&Echo> {
        match &self.form {
            Form::Chat { .. } => None,
            Form::Completion { echo } => echo.get(index / self.n),
        }
    }

    /// The chunk that carries a part; `calls` have begun, this one included.
    fn delta(&self, index: usize, part: Part, calls: usize, logprobs: Option<Value>) -> Value {
        let call = |fields: Value| {
            let mut call = json!({ "index": calls.saturating_sub(1) });
            if let (Value::Object(call), Value::Object(fields)) = (&mut call, fields) {
                call.extend(fields);
            }
            json!({ "tool_calls": [call] })
        };
        let mut choice = match (&self.form, part) {
            (Form::Completion { .. }, Part::Text(text)) => json!({ "index": index, "text": text }),
            (_, part) => {
                let delta = match part {
                    Part::Text(text) => json!({ "content": text }),
                    Part::Call { name, .. } if self.has_functions() => {
                        json!({ "function_call": { "name": name, "arguments": "" } })
                    }
                    Part::Arguments(json) if self.has_functions() => {
                        json!({ "function_call": { "arguments": json } })
                    }
                    Part::Reasoning(text) => json!({ "reasoning_content": text }),
                    Part::Call { id, name } => call(tool_call(&Call { id, name, arguments: String::new() })),
                    Part::Arguments(json) => call(json!({ "function": { "arguments": json } })),
                };
                json!({ "index": index, "delta": delta })
            }
        };
        if let Some(logprobs) = logprobs {
            choice["logprobs"] = logprobs;
        }
        choice["finish_reason"] = Value::Null;
        self.chunk(vec![choice])
    }

    /// The chunk that closes a choice, without the ending's piece.
    fn closing(&self, index: usize, ending: &Ending) -> Value {
        let choice = match self.form {
            Form::Chat { .. } => json!({ "index": index, "delta": {}, "finish_reason": self.finish(ending) }),
            Form::Completion { .. } => json!({ "index": index, "text": "", "finish_reason": ending.finish }),
        };
        let mut chunk = self.chunk(vec![choice]);
        if let Some(figures) = &ending.timings {
            chunk["timings"] = timings(figures);
        }
        chunk
    }

    /// The last chunk of a stream whose client asked for usage.
    fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(Vec::new());
        chunk["usage"] = self.usage(usage);
        chunk
    }

    /// A whole answer; `choices` in order.
    pub(crate) fn whole(&self, choices: Vec<(Message, Ending)>) -> Value {
        let mut usage = Usage::default();
        let mut figures = Vec::with_capacity(choices.len());
        let mut list = Vec::with_capacity(choices.len());
        for (index, (message, ending)) in choices.into_iter().enumerate() {
            usage.add(self, index, &ending);
            let mut choice = self.whole_choice(index, &message);
            if let Some(logprobs) = self.logprobs(index, message.prompt.as_deref(), &message.logprobs) {
                choice["logprobs"] = logprobs;
            }
            choice["finish_reason"] = json!(self.finish(&ending));
            list.push(choice);
            figures.push(ending.timings.as_ref().map(timings));
        }
        // Figures of several choices are not one figure: each choice carries its own.
        let alone = if list.len() == 1 { figures.pop().flatten() } else { None };
        for (choice, figures) in list.iter_mut().zip(figures) {
            if let Some(figures) = figures {
                choice["timings"] = figures;
            }
        }
        let object = match self.form {
            Form::Chat { .. } => "chat.completion",
            Form::Completion { .. } => "text_completion",
        };
        let mut answer = self.envelope(object, list);
        answer["usage"] = self.usage(usage);
        if let Some(figures) = alone {
            answer["timings"] = figures;
        }
        answer
    }

    fn whole_choice(&self, index: usize, message: &Message) -> Value {
        match &self.form {
            Form::Chat { .. } => {
                let mut whole = json!({ "role": "assistant", "content": message.text });
                if !message.reasoning.is_empty() {
                    whole["reasoning_content"] = json!(message.reasoning);
                }
                if !message.calls.is_empty() {
                    if message.text.is_empty() {
                        whole["content"] = Value::Null;
                    }
                    match message.calls.first().filter(|_| self.has_functions()) {
                        Some(Call { name, arguments, .. }) => {
                            whole["function_call"] = json!({ "name": name, "arguments": arguments });
                        }
                        None => whole["tool_calls"] = message.calls.iter().map(tool_call).collect(),
                    }
                }
                json!({ "index": index, "message": whole })
            }
            Form::Completion { .. } => {
                let echo = self.echo(index).map_or("", |echo| &echo.text);
                json!({ "index": index, "text": format!("{echo}{}", message.text) })
            }
        }
    }

    const fn has_functions(&self) -> bool {
        matches!(self.form, Form::Chat { functions: true })
    }

    fn finish(&self, ending: &Ending) -> &'static str {
        match ending.finish {
            "tool_calls" if self.has_functions() => "function_call",
            finish => finish,
        }
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let object = match self.form {
            Form::Chat { .. } => "chat.completion.chunk",
            Form::Completion { .. } => "text_completion",
        };
        self.envelope(object, choices)
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        })
    }

    fn usage(&self, usage: Usage) -> Value {
        let prompt: u32 = self.prompt_tokens.iter().sum();
        let mut answer = json!({
            "prompt_tokens": prompt,
            "completion_tokens": usage.completion,
            "total_tokens": prompt + usage.completion,
            "prompt_tokens_details": { "cached_tokens": usage.cached },
        });
        if usage.reasoning > 0 {
            answer["completion_tokens_details"] = json!({ "reasoning_tokens": usage.reasoning });
        }
        answer
    }

    /// Of tokens of a choice, and of its prompt's if they are given.
    fn logprobs(
        &self,
        index: usize,
        prompt: Option<&[TokenLogprobs]>,
        tokens: &[TokenInfo],
    ) -> Option<Value> {
        let top = self.top_logprobs?;
        let tokenizer = self.tokenizer.as_ref();
        Some(match self.form {
            Form::Chat { .. } => {
                let content: Vec<Value> =
                    tokens.iter().map(|info| logprobs::entry(tokenizer, info)).collect();
                json!({ "content": content })
            }
            Form::Completion { .. } => {
                let echo = self.echo(index);
                let before = echo.map_or(0, |echo| echo.text.chars().count());
                let prompt = prompt.zip(echo).map(|(found, echo)| Entry::of_prompt(tokenizer, echo, found));
                let mut entries = prompt.unwrap_or_default();
                entries.extend(tokens.iter().map(|info| Entry::of_answer(info, before)));
                legacy::lists(tokenizer, &entries, top)
            }
        })
    }
}

fn tool_call(call: &Call) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

/// llama-server's names, and what a line has besides: its stages, the loop around them, and the windows sent.
fn timings(timings: &Timings) -> Value {
    let prompt = timings.prompt_tokens.saturating_sub(timings.cached_tokens);
    // The first token belongs to the prompt's time; the others come after it.
    let intervals = timings.generated_tokens.saturating_sub(1);
    let stages: Vec<Value> = timings
        .stages
        .iter()
        .map(|stage| {
            json!({
                "compute_ms": f64::from(stage.compute_us) / 1e3,
                "queue_ms": f64::from(stage.queue_us) / 1e3,
            })
        })
        .collect();
    json!({
        "cache_n": timings.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": ms(timings.prompt_time),
        "prompt_per_second": rate(prompt, timings.prompt_time),
        "predicted_n": timings.generated_tokens,
        "predicted_ms": ms(timings.generation_time),
        "predicted_per_second": rate(intervals, timings.generation_time),
        "draft_n": timings.drafted,
        "draft_n_accepted": timings.accepted,
        "loop_ms": ms(timings.loop_time),
        "ideal_ms": ms(timings.ideal_time),
        "windows": WindowStatus {
            sent: timings.windows.into(),
            live: timings.live_windows.into(),
            stale: timings.stale_windows.into(),
            in_flight_mean: thousandths(timings.in_flight.mean()),
            in_flight_max: timings.in_flight.most,
            epochs: timings.epochs.into(),
        },
        "sources": SourceStatus::all(&timings.guesses),
        "stages": stages,
    })
}

/// Rounded: more digits would say nothing.
fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Per second; 0 for something that took no time.
fn rate(count: u32, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { (f64::from(count) / seconds * 100.0).round() / 100.0 } else { 0.0 }
}
