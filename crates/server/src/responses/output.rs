//! A response in the making: its items, and the events that tell of them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::aligned::Waiting;
use super::record::Recorder;
use super::store::{Entry, Store};
use crate::error::ApiError;
use crate::generation::{Delta, Ending};
use crate::stream::{Frame, Wire};
use crate::turn::Part;
use crate::{Tokenizer, logprobs};

/// What an item of the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call,
}

/// The item being written.
#[derive(Debug)]
struct Open {
    kind: Kind,
    item: Value,
    /// Its text or arguments so far.
    text: String,
    /// Of the text's tokens, if asked for.
    logprobs: Vec<Value>,
}

/// A response, written by a wire that sends events about it. The same things heard make the same events, to the last byte.
pub(super) struct Output {
    entry: Entry,
    /// Where the response is kept once it is over, and written down until then.
    kept: Option<(Arc<Store>, Recorder)>,
    items: Vec<Value>,
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
        entry.begin_again();
        Self::new(entry, None, tokenizer)
    }

    pub(super) const fn response(&self) -> &Value {
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
        let id = self.open.as_ref().map(|open| open.item["id"].clone());
        let mut fields = json!({ "item_id": id, "output_index": self.items.len() });
        if let (Value::Object(fields), Value::Object(extra)) = (&mut fields, extra) {
            fields.extend(extra);
        }
        self.event(name, fields)
    }

    /// The id of the item that begins next: nobody else's, and the same one whenever this response is told.
    fn next_id(&self, kind: &str) -> String {
        let index = self.items.len() + usize::from(self.open.is_some());
        format!("{kind}_{}{index:04x}", self.entry.id().trim_start_matches("resp_"))
    }

    fn begin(&mut self, kind: Kind, item: Value, frames: &mut Vec<Frame>) {
        self.end_item("completed", frames);
        let index = self.items.len();
        frames.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        self.open = Some(Open { kind, item, text: String::new(), logprobs: Vec::new() });
        if let Some(part) = part(kind, "", &[]) {
            frames.push(
                self.item_event("response.content_part.added", json!({ "content_index": 0, "part": part })),
            );
        }
    }

    /// More of an item with text; a new one unless one of its kind is open.
    fn write(&mut self, kind: Kind, text: String, frames: &mut Vec<Frame>) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            let item = match kind {
                Kind::Reasoning => json!({
                    "id": self.next_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [],
                    "content": [],
                }),
                _ => json!({
                    "id": self.next_id("msg"), "type": "message", "status": "in_progress", "role": "assistant",
                    "content": [],
                }),
            };
            self.begin(kind, item, frames);
        }
        // Also what is no message takes its tokens out of the way.
        let mut logprobs = self.waiting.take(&text);
        let frame = match kind {
            Kind::Message => {
                let fields = json!({ "content_index": 0, "delta": text, "logprobs": logprobs });
                self.item_event("response.output_text.delta", fields)
            }
            Kind::Reasoning => {
                self.item_event("response.reasoning_text.delta", json!({ "content_index": 0, "delta": text }))
            }
            Kind::Call => self.item_event("response.function_call_arguments.delta", json!({ "delta": text })),
        };
        frames.push(frame);
        if let Some(open) = &mut self.open {
            open.text.push_str(&text);
            open.logprobs.append(&mut logprobs);
        }
    }

    fn end_item(&mut self, status: &str, frames: &mut Vec<Frame>) {
        let Some(Open { kind, mut item, text, logprobs }) = self.open.take() else { return };
        let index = self.items.len();
        let at = |extra: Value| {
            let mut fields = json!({ "item_id": item["id"], "output_index": index });
            if let (Value::Object(fields), Value::Object(extra)) = (&mut fields, extra) {
                fields.extend(extra);
            }
            fields
        };
        let done = match kind {
            Kind::Message => {
                let fields = at(json!({ "content_index": 0, "text": text, "logprobs": logprobs }));
                self.event("response.output_text.done", fields)
            }
            Kind::Reasoning => {
                let fields = at(json!({ "content_index": 0, "text": text }));
                self.event("response.reasoning_text.done", fields)
            }
            Kind::Call => {
                let fields = at(json!({ "name": item["name"], "arguments": text }));
                self.event("response.function_call_arguments.done", fields)
            }
        };
        frames.push(done);
        if let Some(part) = part(kind, &text, &logprobs) {
            let fields = at(json!({ "content_index": 0, "part": part }));
            frames.push(self.event("response.content_part.done", fields));
            item["content"] = json!([part]);
        } else {
            item["arguments"] = json!(text);
        }
        item["status"] = json!(status);
        let fields = json!({ "output_index": index, "item": item });
        frames.push(self.event("response.output_item.done", fields));
        self.items.push(item);
    }

    /// Somebody ended it, so nothing more will be heard.
    pub(super) fn cancelled(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.end_item("incomplete", &mut frames);
        self.entry.response["status"] = json!("cancelled");
        frames.push(self.finish("response.incomplete"));
        frames
    }

    /// The response is over, as its status says: keeps it and tells of it.
    fn finish(&mut self, event: &'static str) -> Frame {
        self.entry.response["output"] = json!(self.items);
        if let Some((store, _)) = self.kept.take() {
            if self.entry.response["background"] == true {
                store.finish(self.entry());
            } else {
                store.put(self.entry());
            }
        }
        let response = self.entry.response.clone();
        self.event(event, json!({ "response": response }))
    }
}

/// The content of a message or of reasoning.
fn part(kind: Kind, text: &str, logprobs: &[Value]) -> Option<Value> {
    match kind {
        Kind::Message => {
            Some(json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs }))
        }
        Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": text })),
        Kind::Call => None,
    }
}

impl Wire for Output {
    fn open(&mut self, _n: usize) -> Vec<Frame> {
        let response = self.entry.response.clone();
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
        ]
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        if let Some((_, recorder)) = &self.kept {
            recorder.delta(&delta);
        }
        let mut frames = Vec::new();
        let tokenizer = self.tokenizer.as_ref();
        for info in &delta.logprobs {
            self.waiting.push(logprobs::bytes(tokenizer, info.token), logprobs::entry(tokenizer, info));
        }
        for part in delta.parts {
            match part {
                Part::Text(text) => self.write(Kind::Message, text, &mut frames),
                Part::Reasoning(text) => self.write(Kind::Reasoning, text, &mut frames),
                Part::Arguments(json) => self.write(Kind::Call, json, &mut frames),
                Part::Call { id, name } => {
                    let item = json!({
                        "id": self.next_id("fc"), "type": "function_call",
                        "status": "in_progress", "call_id": id, "name": name, "arguments": "",
                    });
                    self.begin(Kind::Call, item, &mut frames);
                }
            }
        }
        frames
    }

    fn end(&mut self, _index: usize, ending: &Ending) -> Vec<Frame> {
        if let Some((_, recorder)) = &self.kept {
            recorder.end(ending);
        }
        let mut frames = Vec::new();
        let cut = ending.finish == "length";
        let status = if cut { "incomplete" } else { "completed" };
        self.end_item(status, &mut frames);
        let input = self.entry.prompt_tokens;
        let response = &mut self.entry.response;
        response["status"] = json!(status);
        if cut {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["usage"] = json!({
            "input_tokens": input,
            "input_tokens_details": { "cached_tokens": ending.cached },
            "output_tokens": ending.completion,
            "output_tokens_details": { "reasoning_tokens": ending.reasoning },
            "total_tokens": input + ending.completion,
        });
        frames.push(self.finish(if cut { "response.incomplete" } else { "response.completed" }));
        frames
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        if let Some((_, recorder)) = &self.kept {
            recorder.failed(error);
        }
        let mut frames = Vec::new();
        self.end_item("incomplete", &mut frames);
        self.entry.response["status"] = json!("failed");
        self.entry.response["error"] = json!({ "code": error.code(), "message": error.to_string() });
        frames.push(self.finish("response.failed"));
        frames
    }

    fn close(&mut self) -> Vec<Frame> {
        Vec::new()
    }
}
