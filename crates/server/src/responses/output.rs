//! A response in the making: its items, and the events that tell of them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::aligned::Waiting;
use super::object::{Incomplete, Item, Kind, Outcome, ResponseError, ResponseObject, Status, Usage};
use super::record::Recorder;
use super::store::{Entry, Store};
use crate::error::ApiError;
use crate::generation::{Delta, Ending};
use crate::logprobs::TokenLogprob;
use crate::stream::{Frame, Wire};
use crate::turn::Part;
use crate::{Tokenizer, logprobs};

/// The item being written.
#[derive(Debug)]
struct Open {
    item: Item,
    /// Its text or arguments so far.
    text: String,
    /// Of the text's tokens, if asked for.
    logprobs: Vec<TokenLogprob>,
}

/// A response, written by a wire that sends events about it. The same things heard make the same events, to the last byte.
pub(super) struct Output {
    entry: Entry,
    /// Where the response is kept once it is over, and written down until then.
    kept: Option<(Arc<Store>, Recorder)>,
    items: Vec<Item>,
    open: Option<Open>,
    /// For log-probabilities.
    tokenizer: Arc<dyn Tokenizer>,
    waiting: Waiting,
    /// Events so far.
    sequence: u64,
}

impl Output {
    /// A response that begins, to be kept if there is a store for it.
    pub(super) fn new(mut entry: Entry, store: Option<Arc<Store>>, tokenizer: Arc<dyn Tokenizer>) -> Self {
        let kept = store.map(|store| {
            let (recorder, record) = Recorder::new();
            entry.record = record;
            (store, recorder)
        });
        let waiting = Waiting::default();
        Self { entry, kept, items: Vec::new(), open: None, tokenizer, waiting, sequence: 0 }
    }

    /// A kept response, told once more from its beginning.
    pub(super) fn again(mut entry: Entry, tokenizer: Arc<dyn Tokenizer>) -> Self {
        entry.response.outcome = Outcome::default();
        Self::new(entry, None, tokenizer)
    }

    pub(super) const fn response(&self) -> &ResponseObject {
        &self.entry.response
    }

    pub(super) fn entry(&self) -> Entry {
        self.entry.clone()
    }

    /// An event with its number.
    fn event(&mut self, name: &'static str, fields: Value) -> Frame {
        let mut event = json!({ "type": name, "sequence_number": self.sequence });
        self.sequence += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        Frame::named(name, &event)
    }

    /// An event about the open item.
    fn item_event(&mut self, name: &'static str, extra: Value) -> Frame {
        let id = self.open.as_ref().map(|open| open.item.id.clone());
        let mut fields = json!({ "item_id": id, "output_index": self.items.len() });
        if let (Value::Object(fields), Value::Object(extra)) = (&mut fields, extra) {
            fields.extend(extra);
        }
        self.event(name, fields)
    }

    fn begin(&mut self, kind: Kind, frames: &mut Vec<Frame>) {
        self.end_item(Status::Completed, frames);
        let index = self.items.len();
        // Nobody else's, and the same one whenever this response is told.
        let id = format!("{}_{}{index:04x}", kind.prefix(), self.entry.id().trim_start_matches("resp_"));
        let part = kind.part("", &[]);
        let item = Item { id, kind, status: Status::InProgress };
        frames.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        self.open = Some(Open { item, text: String::new(), logprobs: Vec::new() });
        if let Some(part) = part {
            frames.push(
                self.item_event("response.content_part.added", json!({ "content_index": 0, "part": part })),
            );
        }
    }

    /// Begins an item unless one of its kind is open.
    fn ensure(&mut self, kind: Kind, frames: &mut Vec<Frame>) {
        let same = |open: &Open| open.item.kind.prefix() == kind.prefix();
        if !self.open.as_ref().is_some_and(same) {
            self.begin(kind, frames);
        }
    }

    /// More of the open item, which an event of this name tells.
    fn write(&mut self, text: String, name: &'static str, frames: &mut Vec<Frame>) {
        // Also what is no message takes its tokens out of the way.
        let mut taken = self.waiting.take(&text);
        let fields = match self.open.as_ref().map(|open| &open.item.kind) {
            Some(Kind::Message { .. }) => json!({ "content_index": 0, "delta": text, "logprobs": taken }),
            Some(Kind::Reasoning { .. }) => json!({ "content_index": 0, "delta": text }),
            Some(Kind::FunctionCall { .. }) | None => json!({ "delta": text }),
        };
        frames.push(self.item_event(name, fields));
        if let Some(open) = &mut self.open {
            open.text.push_str(&text);
            open.logprobs.append(&mut taken);
        }
    }

    fn end_item(&mut self, status: Status, frames: &mut Vec<Frame>) {
        let Some(Open { mut item, text, logprobs }) = self.open.take() else { return };
        let index = self.items.len();
        let at = |id: &str, extra: Value| {
            let mut fields = json!({ "item_id": id, "output_index": index });
            if let (Value::Object(fields), Value::Object(extra)) = (&mut fields, extra) {
                fields.extend(extra);
            }
            fields
        };
        let (name, fields) = match &item.kind {
            Kind::Message { .. } => (
                "response.output_text.done",
                json!({ "content_index": 0, "text": text, "logprobs": logprobs }),
            ),
            Kind::Reasoning { .. } => {
                ("response.reasoning_text.done", json!({ "content_index": 0, "text": text }))
            }
            Kind::FunctionCall { name, .. } => {
                ("response.function_call_arguments.done", json!({ "name": name, "arguments": text }))
            }
        };
        frames.push(self.event(name, at(&item.id, fields)));
        if let Some(part) = item.kind.part(&text, &logprobs) {
            let fields = at(&item.id, json!({ "content_index": 0, "part": part }));
            frames.push(self.event("response.content_part.done", fields));
            if let Kind::Message { content, .. } | Kind::Reasoning { content, .. } = &mut item.kind {
                content.push(part);
            }
        } else if let Kind::FunctionCall { arguments, .. } = &mut item.kind {
            *arguments = text;
        }
        item.status = status;
        let fields = json!({ "output_index": index, "item": item });
        frames.push(self.event("response.output_item.done", fields));
        self.items.push(item);
    }

    /// Somebody ended it, so nothing more will be heard.
    pub(super) fn cancelled(&mut self) -> Vec<Frame> {
        self.finish(Status::Cancelled, Status::Incomplete, "response.incomplete")
    }

    /// The response is over: keeps it and tells of it, and first of the item that was being written.
    fn finish(&mut self, status: Status, of_item: Status, event: &'static str) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.end_item(of_item, &mut frames);
        let outcome = &mut self.entry.response.outcome;
        (outcome.status, outcome.output) = (status, std::mem::take(&mut self.items));
        if let Some((store, _)) = self.kept.take() {
            if self.entry.response.background {
                store.finish(self.entry());
            } else {
                store.put(self.entry());
            }
        }
        let response = json!({ "response": self.entry.response });
        frames.push(self.event(event, response));
        frames
    }
}

impl Wire for Output {
    fn open(&mut self, _n: usize) -> Vec<Frame> {
        let response = json!({ "response": self.entry.response });
        vec![self.event("response.created", response.clone()), self.event("response.in_progress", response)]
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        if let Some((_, recorder)) = &self.kept {
            recorder.delta(&delta);
        }
        let mut frames = Vec::new();
        let tokenizer = self.tokenizer.as_ref();
        for info in &delta.logprobs {
            self.waiting.push(logprobs::bytes(tokenizer, info.token), TokenLogprob::new(tokenizer, info));
        }
        for part in delta.parts {
            match part {
                Part::Text(text) => {
                    self.ensure(Kind::message(), &mut frames);
                    self.write(text, "response.output_text.delta", &mut frames);
                }
                Part::Reasoning(text) => {
                    self.ensure(Kind::reasoning(), &mut frames);
                    self.write(text, "response.reasoning_text.delta", &mut frames);
                }
                Part::Call { id, name } => {
                    let call = Kind::FunctionCall { call_id: id, name, arguments: String::new() };
                    self.begin(call, &mut frames);
                }
                Part::Arguments(json) => {
                    self.write(json, "response.function_call_arguments.delta", &mut frames);
                }
            }
        }
        frames
    }

    fn end(&mut self, _index: usize, ending: &Ending) -> Vec<Frame> {
        if let Some((_, recorder)) = &self.kept {
            recorder.end(ending);
        }
        let outcome = &mut self.entry.response.outcome;
        outcome.usage = Some(Usage::new(self.entry.prompt_tokens, ending));
        if ending.finish == "length" {
            outcome.incomplete_details = Some(Incomplete { reason: "max_output_tokens" });
            return self.finish(Status::Incomplete, Status::Incomplete, "response.incomplete");
        }
        self.finish(Status::Completed, Status::Completed, "response.completed")
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        if let Some((_, recorder)) = &self.kept {
            recorder.failed(error);
        }
        let (code, message) = (error.code(), error.to_string());
        self.entry.response.outcome.error = Some(ResponseError { code, message });
        self.finish(Status::Failed, Status::Incomplete, "response.failed")
    }

    fn close(&mut self) -> Vec<Frame> {
        Vec::new()
    }
}
