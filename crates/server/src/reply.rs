//! The JSON of OpenAI's answers, whole and in chunks, in the forms of chats and of completions.

use std::sync::Arc;

use protocol::TokenLogprobs;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Tokenizer;
use crate::answer::TokenInfo;
use crate::completion::{
    ChatChoice, ChatLogprobs, Figures, FunctionCall, OfAnswers, OfPrompts, Said, TextChoice, ToolCall, Usage,
    Whole,
};
use crate::error::ApiError;
use crate::generation::{Delta, Ending};
use crate::legacy::{Echo, Entry, TokenLists};
use crate::logprobs::TokenLogprob;
use crate::progress::Progress;
use crate::stream::{Call, Frame, Message, Wire};
use crate::turn::Part;

/// Which API an answer is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// With calls as OpenAI had them before tools, if `functions`.
    Chat { functions: bool },
    /// `echo` holds what every choice begins with, one per prompt; empty for none.
    Completion { echo: Vec<Echo> },
}

/// A whole answer in either form.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    Chat(Whole<ChatChoice>),
    Completion(Whole<TextChoice>),
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
    counted: Counted,
    /// Calls begun so far, by choice.
    calls: Vec<usize>,
}

impl ReplyStream {
    pub(crate) const fn new(reply: Reply) -> Self {
        Self { reply, counted: Counted { cached: 0, completion: 0, reasoning: 0 }, calls: Vec::new() }
    }
}

impl Wire for ReplyStream {
    fn open(&mut self, n: usize) -> Vec<Frame> {
        self.calls = vec![0; n];
        (0..n).filter_map(|index| self.reply.opening(index)).map(|chunk| Frame::data(&chunk)).collect()
    }

    fn progress(&mut self, index: usize, progress: Progress) -> Vec<Frame> {
        vec![Frame::data(&self.reply.advanced(index, progress))]
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
        self.counted.add(&self.reply, index, ending);
        vec![Frame::data(&self.reply.closing(index, ending))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::data(&error.body())]
    }

    fn close(&mut self) -> Vec<Frame> {
        let done = Frame { event: None, data: "[DONE]".into() };
        if self.reply.include_usage {
            vec![Frame::data(&self.reply.usage_chunk(self.counted)), done]
        } else {
            vec![done]
        }
    }
}

/// Tokens of all choices so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    cached: u32,
    completion: u32,
    reasoning: u32,
}

impl Counted {
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
            let call = joined(json!({ "index": calls.saturating_sub(1) }), fields);
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
                    Part::Call { id, name } => {
                        call(json!(ToolCall::from(&Call { id, name, arguments: String::new() })))
                    }
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

    /// A chunk that says nothing but how far the prompt is, by llama-server's names.
    fn advanced(&self, index: usize, progress: Progress) -> Value {
        let Progress { total, cached, done, took } = progress;
        let text = match self.form {
            Form::Chat { .. } => json!({ "delta": {} }),
            Form::Completion { .. } => json!({ "text": "" }),
        };
        let choice = joined(joined(json!({ "index": index }), text), json!({ "finish_reason": null }));
        let mut chunk = self.chunk(vec![choice]);
        chunk["prompt_progress"] =
            json!({ "total": total, "cache": cached, "processed": done, "time_ms": took.as_millis() as u64 });
        chunk
    }

    /// The chunk that closes a choice, without the ending's piece.
    fn closing(&self, index: usize, ending: &Ending) -> Value {
        let choice = match self.form {
            Form::Chat { .. } => json!({ "index": index, "delta": {}, "finish_reason": self.finish(ending) }),
            Form::Completion { .. } => json!({ "index": index, "text": "", "finish_reason": ending.finish }),
        };
        let mut chunk = self.chunk(vec![choice]);
        if let Some(figures) = &ending.timings {
            chunk["timings"] = json!(Figures::from(figures));
        }
        chunk
    }

    /// The last chunk of a stream whose client asked for usage.
    fn usage_chunk(&self, counted: Counted) -> Value {
        let mut chunk = self.chunk(Vec::new());
        chunk["usage"] = json!(self.usage(counted));
        chunk
    }

    /// A whole answer; `choices` in order.
    pub(crate) fn whole(&self, choices: Vec<(Message, Ending)>) -> Answer {
        match &self.form {
            Form::Chat { .. } => {
                let choice = |index, message: Message, ending: &Ending, timings| ChatChoice {
                    index,
                    logprobs: self.chat_logprobs(&message.logprobs),
                    message: self.said(message),
                    finish_reason: self.finish(ending),
                    timings,
                };
                Answer::Chat(self.whole_of("chat.completion", choices, choice))
            }
            Form::Completion { .. } => {
                let choice = |index, message: Message, ending: &Ending, timings| TextChoice {
                    index,
                    text: format!("{}{}", self.echo(index).map_or("", |echo| &echo.text), message.text),
                    logprobs: self.text_logprobs(index, message.prompt.as_deref(), &message.logprobs),
                    finish_reason: ending.finish,
                    timings,
                };
                Answer::Completion(self.whole_of("text_completion", choices, choice))
            }
        }
    }

    fn whole_of<C>(
        &self,
        object: &'static str,
        choices: Vec<(Message, Ending)>,
        choice: impl Fn(usize, Message, &Ending, Option<Figures>) -> C,
    ) -> Whole<C> {
        let mut counted = Counted::default();
        // Figures of several choices are not one figure: each choice carries its own.
        let is_alone = choices.len() == 1;
        let mut alone = None;
        let mut list = Vec::with_capacity(choices.len());
        for (index, (message, ending)) in choices.into_iter().enumerate() {
            counted.add(self, index, &ending);
            let mut figures = ending.timings.as_ref().map(Figures::from);
            if is_alone {
                alone = figures.take();
            }
            list.push(choice(index, message, &ending, figures));
        }
        Whole {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: self.fingerprint.clone(),
            choices: list,
            usage: self.usage(counted),
            timings: alone,
        }
    }

    fn said(&self, message: Message) -> Said {
        let Message { text, reasoning, calls, .. } = message;
        let (mut function_call, mut tool_calls) = (None, Vec::new());
        if self.has_functions() {
            function_call = calls.first().map(FunctionCall::from);
        } else {
            tool_calls = calls.iter().map(ToolCall::from).collect();
        }
        Said {
            role: "assistant",
            content: (!text.is_empty() || calls.is_empty()).then_some(text),
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            function_call,
            tool_calls,
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

    fn usage(&self, counted: Counted) -> Usage {
        let Counted { cached, completion, reasoning } = counted;
        let prompt: u32 = self.prompt_tokens.iter().sum();
        Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: OfPrompts { cached_tokens: cached },
            completion_tokens_details: (reasoning > 0).then_some(OfAnswers { reasoning_tokens: reasoning }),
        }
    }

    /// Of tokens of a choice, and of its prompt's if they are given.
    fn logprobs(
        &self,
        index: usize,
        prompt: Option<&[TokenLogprobs]>,
        tokens: &[TokenInfo],
    ) -> Option<Value> {
        match self.form {
            Form::Chat { .. } => self.chat_logprobs(tokens).map(|logprobs| json!(logprobs)),
            Form::Completion { .. } => {
                self.text_logprobs(index, prompt, tokens).map(|logprobs| json!(logprobs))
            }
        }
    }

    fn chat_logprobs(&self, tokens: &[TokenInfo]) -> Option<ChatLogprobs> {
        self.top_logprobs?;
        let content = tokens.iter().map(|info| TokenLogprob::new(self.tokenizer.as_ref(), info));
        Some(ChatLogprobs { content: content.collect() })
    }

    fn text_logprobs(
        &self,
        index: usize,
        prompt: Option<&[TokenLogprobs]>,
        tokens: &[TokenInfo],
    ) -> Option<TokenLists> {
        let (top, tokenizer) = (self.top_logprobs?, self.tokenizer.as_ref());
        let echo = self.echo(index);
        let before = echo.map_or(0, |echo| echo.text.chars().count());
        let prompt = prompt.zip(echo).map(|(found, echo)| Entry::of_prompt(tokenizer, echo, found));
        let mut entries = prompt.unwrap_or_default();
        entries.extend(tokens.iter().map(|info| Entry::of_answer(info, before)));
        Some(TokenLists::new(tokenizer, &entries, top))
    }
}

/// An object with the fields of another behind its own.
pub(crate) fn joined(mut object: Value, fields: Value) -> Value {
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}
