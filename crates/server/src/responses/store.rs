//! Responses that were given, for requests that go on from them. The oldest go first when there are too many.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::object::{ResponseObject, Status};
use super::record::Record;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::limits::{MAX_RESPONSES, MAX_RESPONSES_BYTES};

/// Clients at once that are told kept responses once more: each makes one anew in memory, some MiB for the longest. There
/// are rarely more than a few who lost their connection.
const MAX_REPLAYS: u32 = 16;

/// One response, all that the model read for it, and whose it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub response: ResponseObject,
    pub input: Arc<[Value]>,
    pub owner: Caller,
    /// Of what the model read.
    pub prompt_tokens: u32,
    /// What its events are told from.
    pub record: Record,
}

impl Entry {
    pub(super) fn id(&self) -> &str {
        &self.response.id
    }

    fn bytes(&self) -> usize {
        let input: usize = self.input.iter().map(|item| item.to_string().len()).sum();
        json!(self.response).to_string().len() + input + self.record.bytes()
    }
}

#[derive(Debug)]
struct Kept {
    entry: Entry,
    bytes: usize,
    /// Ends a response that runs in the background.
    task: Option<AbortHandle>,
}

impl Kept {
    fn is_of(&self, caller: Caller) -> bool {
        self.entry.owner.owns_with(caller)
    }

    fn is_running(&self) -> bool {
        self.entry.response.outcome.status == Status::InProgress
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

#[derive(Debug, Default)]
struct State {
    kept: BTreeMap<String, Kept>,
    /// Ids, oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

/// Responses in memory, at most so many and so large. To whoever asks, those of others do not exist.
#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    /// For clients that are told a response once more.
    places: Arc<Semaphore>,
}

impl Default for Store {
    fn default() -> Self {
        Self { state: Mutex::default(), places: Arc::new(Semaphore::new(MAX_REPLAYS as usize)) }
    }
}

impl Store {
    /// A place to be told a response once more.
    pub(super) fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let place = self.places.clone().try_acquire_owned();
        place.map_err(|_| ApiError::TooManyReplays { limit: MAX_REPLAYS })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response.
    pub(crate) fn put(&self, entry: Entry) {
        let mut state = self.state();
        let bytes = entry.bytes();
        let id = entry.id().to_owned();
        state.order.push_back(id.clone());
        state.bytes += bytes;
        state.kept.insert(id, Kept { entry, bytes, task: None });
        state.shrink();
    }

    /// A response that runs takes so much more room.
    pub(super) fn grow(&self, id: &str, bytes: usize) {
        let mut state = self.state();
        let Some(kept) = state.kept.get_mut(id).filter(|kept| kept.is_running()) else { return };
        kept.bytes += bytes;
        state.bytes += bytes;
        state.shrink();
    }

    /// Replaces a response that is still kept, as long as it runs: one that was cancelled stays cancelled. Says whether
    /// it did.
    pub(crate) fn finish(&self, entry: Entry) -> bool {
        let mut state = self.state();
        let id = entry.id().to_owned();
        let Some(kept) = state.kept.get_mut(&id).filter(|kept| kept.is_running()) else {
            return false;
        };
        // The task ends by itself.
        kept.task = None;
        let (before, after) = (kept.bytes, entry.bytes());
        (kept.entry, kept.bytes) = (entry, after);
        state.bytes = state.bytes - before + after;
        state.shrink();
        true
    }

    /// Remembers how to end a response in the background.
    pub(crate) fn running(&self, id: &str, task: AbortHandle) {
        match self.state().kept.get_mut(id) {
            Some(kept) if kept.is_running() => kept.task = Some(task),
            Some(_) => {}
            None => task.abort(),
        }
    }

    /// A response of `caller`'s.
    pub(crate) fn get(&self, id: &str, caller: Caller) -> Option<Entry> {
        self.state().kept.get(id).filter(|kept| kept.is_of(caller)).map(|kept| kept.entry.clone())
    }

    /// Ends a response of `caller`'s if it runs in the background; gives it as it is then.
    pub(crate) fn cancel(&self, id: &str, caller: Caller) -> Option<ResponseObject> {
        let mut state = self.state();
        let kept = state.kept.get_mut(id).filter(|kept| kept.is_of(caller))?;
        if let Some(task) = kept.task.take() {
            task.abort();
            kept.entry.response.outcome.status = Status::Cancelled;
        }
        Some(kept.entry.response.clone())
    }

    /// Forgets a response of `caller`'s. False if none was kept.
    pub(crate) fn remove(&self, id: &str, caller: Caller) -> bool {
        let mut state = self.state();
        if !state.kept.get(id).is_some_and(|kept| kept.is_of(caller)) {
            return false;
        }
        state.order.retain(|kept| kept != id);
        state.forget(id)
    }
}

impl State {
    fn shrink(&mut self) {
        while self.order.len() > MAX_RESPONSES || self.bytes > MAX_RESPONSES_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, id: &str) -> bool {
        let Some(kept) = self.kept.remove(id) else { return false };
        self.bytes -= kept.bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::object::Outcome;
    use super::*;

    fn entry(id: &str, text: &str) -> Entry {
        let echo = Map::from_iter([("text".to_owned(), json!(text))]);
        let outcome = Outcome { status: Status::Completed, ..Outcome::default() };
        let response = ResponseObject { id: id.into(), outcome, echo, ..ResponseObject::default() };
        Entry { response, ..Entry::default() }
    }

    #[test]
    fn the_oldest_response_makes_room() {
        let store = Store::default();
        (0..=MAX_RESPONSES).for_each(|i| store.put(entry(&i.to_string(), "")));
        assert!(store.get("0", Caller::default()).is_none() && store.get("1", Caller::default()).is_some());
        store.put(entry("large", &"x".repeat(MAX_RESPONSES_BYTES - 1000)));
        assert!(
            store.get("large", Caller::default()).is_some() && store.get("1", Caller::default()).is_none()
        );
        store.put(entry("larger", &"x".repeat(MAX_RESPONSES_BYTES)));
        assert!(store.state().kept.is_empty() && store.state().bytes == 0);
    }

    #[test]
    fn what_is_removed_is_gone() {
        let store = Store::default();
        store.put(entry("a", ""));
        assert!(
            store.remove("a", Caller::default())
                && !store.remove("a", Caller::default())
                && store.get("a", Caller::default()).is_none()
        );
        assert_eq!(store.state().bytes, 0);
    }
}
