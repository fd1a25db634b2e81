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
use crate::reply::joined;
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
        let event = joined(json!({ "type": name, "sequence_number": self.sequence }), fields);
        self.sequence += 1;
        Frame::named(name, &event)
    }

    /// An event about the item that is being written, which has this id.
    fn item_event(&mut self, name: &'static str, id: &str, fields: Value) -> Frame {
        let fields = joined(json!({ "item_id": id, "output_index": self.items.len() }), fields);
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
        if let Some(part) = part {
            let fields = json!({ "content_index": 0, "part": part });
            frames.push(self.item_event("response.content_part.added", &item.id, fields));
        }
        self.open = Some(Open { item, text: String::new(), logprobs: Vec::new() });
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
        let mut open = self.open.take().expect("arguments follow their call, and text begins its item");
        let fields = match open.item.kind {
            Kind::Message { .. } => json!({ "content_index": 0, "delta": text, "logprobs": taken }),
            Kind::Reasoning { .. } => json!({ "content_index": 0, "delta": text }),
            Kind::FunctionCall { .. } => json!({ "delta": text }),
        };
        frames.push(self.item_event(name, &open.item.id, fields));
        open.text.push_str(&text);
        open.logprobs.append(&mut taken);
        self.open = Some(open);
    }

    fn end_item(&mut self, status: Status, frames: &mut Vec<Frame>) {
        let Some(Open { mut item, text, logprobs }) = self.open.take() else { return };
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
        frames.push(self.item_event(name, &item.id, fields));
        if let Some(part) = item.kind.part(&text, &logprobs) {
            let fields = json!({ "content_index": 0, "part": part });
            frames.push(self.item_event("response.content_part.done", &item.id, fields));
            if let Kind::Message { content, .. } | Kind::Reasoning { content, .. } = &mut item.kind {
                content.push(part);
            }
        } else if let Kind::FunctionCall { arguments, .. } = &mut item.kind {
            *arguments = text;
        }
        item.status = status;
        let fields = json!({ "output_index": self.items.len(), "item": item });
        frames.push(self.event("response.output_item.done", fields));
        self.items.push(item);
    }

    /// Somebody ended it, so nothing more will be heard.
    pub(super) fn cancelled(&mut self) -> Vec<Frame> {
        self.finish(Status::Cancelled, "response.incomplete", |_| ())
    }

    /// The response is over: keeps it, writes its end down and tells of it, and first of the item that was being
    /// written.
    fn finish(
        &mut self,
        status: Status,
        event: &'static str,
        write_down: impl FnOnce(&Recorder),
    ) -> Vec<Frame> {
        let mut frames = Vec::new();
        let whole = status == Status::Completed;
        self.end_item(if whole { Status::Completed } else { Status::Incomplete }, &mut frames);
        let outcome = &mut self.entry.response.outcome;
        (outcome.status, outcome.output) = (status, std::mem::take(&mut self.items));
        if let Some((store, recorder)) = self.kept.take() {
            // Whoever hears of the end may come for the response at once. What was ended by somebody before has no
            // other end.
            let counts = if self.entry.response.background {
                store.finish(self.entry())
            } else {
                store.put(self.entry());
                true
            };
            if counts {
                write_down(&recorder);
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
        if let Some((store, recorder)) = &self.kept {
            let bytes = recorder.delta(&delta);
            if self.entry.response.background {
                store.grow(self.entry.id(), bytes);
            }
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
        let outcome = &mut self.entry.response.outcome;
        outcome.usage = Some(Usage::new(self.entry.prompt_tokens, ending));
        if ending.finish == "length" {
            outcome.incomplete_details = Some(Incomplete { reason: "max_output_tokens" });
            return self.finish(Status::Incomplete, "response.incomplete", |recorder| recorder.end(ending));
        }
        self.finish(Status::Completed, "response.completed", |recorder| recorder.end(ending))
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        let (code, message) = (error.code(), error.to_string());
        self.entry.response.outcome.error = Some(ResponseError { code, message });
        self.finish(Status::Failed, "response.failed", |recorder| recorder.failed(error))
    }

    fn close(&mut self) -> Vec<Frame> {
        Vec::new()
    }
}

impl Drop for Output {
    /// Nobody makes a response in the background any more, as after a panic, so it would run for ever.
    fn drop(&mut self) {
        if self.kept.is_some() && self.entry.response.background {
            self.fail(&ApiError::Internal("the response was given up: send its request again".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};

    use futures_util::{Stream, StreamExt};

    use super::super::record;
    use super::*;
    use crate::auth::Caller;
    use crate::limits::MAX_RESPONSES_BYTES;
    use crate::testing::Bytes256;

    const ID: &str = "resp_1";

    /// A response in the background that has begun.
    fn background() -> (Output, Arc<Store>) {
        let response = ResponseObject { id: ID.into(), background: true, ..ResponseObject::default() };
        let store = Arc::new(Store::default());
        let entry = Entry { response, ..Entry::default() };
        let output = Output::new(entry, Some(store.clone()), Arc::new(Bytes256));
        store.put(output.entry());
        (output, store)
    }

    fn follow(entry: Entry, after: Option<u64>) -> impl Stream<Item = Frame> {
        record::replay(entry, Arc::new(Bytes256), after, None)
    }

    fn end(output: &mut Output) {
        let delta = Delta::default();
        let (finish, stop, timings) = ("stop", None, None);
        output.end(0, &Ending { delta, finish, stop, cached: 0, completion: 1, reasoning: 0, timings });
    }

    fn fail(output: &mut Output) {
        output.fail(&ApiError::Cancelled);
    }

    fn status(store: &Store) -> Status {
        store.get(ID, Caller::default()).expect("it is kept").response.outcome.status
    }

    /// A follower that looks into the store the moment it is woken.
    struct Looks(Arc<Store>, Mutex<Vec<Status>>);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(status(&self.0));
        }
    }

    #[test]
    fn whoever_hears_of_the_end_finds_it_in_the_store() {
        for (over, expected) in
            [(end as fn(&mut Output), Status::Completed), (fail as fn(&mut Output), Status::Failed)]
        {
            let (mut output, store) = background();
            let looks = Arc::new(Looks(store, Mutex::default()));
            let mut follower = pin!(follow(output.entry(), Some(1)));
            let waker = Waker::from(looks.clone());
            assert!(follower.as_mut().poll_next(&mut Context::from_waker(&waker)).is_pending());
            over(&mut output);
            assert_eq!(*looks.1.lock().unwrap(), [expected]);
        }
    }

    #[tokio::test]
    async fn a_response_cancelled_at_its_end_is_cancelled_in_its_events_too() {
        let (mut output, store) = background();
        store.running(ID, tokio::spawn(std::future::pending::<()>()).abort_handle());
        store.cancel(ID, Caller::default()).unwrap();
        end(&mut output);
        assert_eq!(status(&store), Status::Cancelled);
        let events: Vec<Frame> = follow(output.entry(), None).collect().await;
        assert_eq!(events.last().unwrap().event, Some("response.incomplete"));
    }

    #[tokio::test]
    async fn a_response_whose_making_is_given_up_has_failed() {
        let (output, store) = background();
        drop(output);
        assert_eq!(status(&store), Status::Failed);
        let entry = store.get(ID, Caller::default()).unwrap();
        let events: Vec<Frame> = follow(entry, None).collect().await;
        assert_eq!(events.last().unwrap().event, Some("response.failed"));
    }

    #[test]
    fn a_running_response_counts_with_what_it_has_said() {
        let (mut output, store) = background();
        let text = "x".repeat(MAX_RESPONSES_BYTES);
        output.delta(0, Delta { parts: vec![Part::Text(text)], ..Delta::default() });
        assert!(store.get(ID, Caller::default()).is_none());
    }
}
