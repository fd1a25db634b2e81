//! The roll of requests: those that wait or run, and the last ones that ended, for people who watch.
//!
//! Owns: whose they are and how they ended. Never what was asked or answered; where a running one stands is the line's
//! to say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scheduler::{RequestId, Timings};
use serde::Serialize;
use tokio::sync::watch;

use crate::auth::Caller;
use crate::limits::MAX_ENDED;
use crate::prompt::unix_seconds;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    live: BTreeMap<RequestId, Live>,
    /// The last one first.
    ended: VecDeque<Ended>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    caller: Caller,
    since: u64,
    prompt_tokens: u32,
    max_tokens: Option<u32>,
}

/// A request that waits or runs, as a watcher sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Running {
    /// Its number on the line.
    id: u64,
    /// When it came, in seconds since 1970.
    since: u64,
    prompt_tokens: u32,
    /// Tokens that it may generate; absent if only the context ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    /// Whether the watcher may cancel it.
    yours: bool,
}

/// A request that is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Ended {
    id: u64,
    /// When it ended, in seconds since 1970.
    at: u64,
    /// `stop`, `length`, `tool_calls`, `embedded`, `cancelled` or `failed`.
    finish: &'static str,
    prompt_tokens: u32,
    cached_tokens: u32,
    generated_tokens: u32,
    drafted_tokens: u32,
    accepted_tokens: u32,
    queued_ms: f64,
    /// From its arrival to its first token; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_ms: Option<f64>,
    /// After the first token; absent with fewer than two.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second: Option<f64>,
}

/// All of it, as one caller may see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Requests {
    live: Vec<Running>,
    ended: Vec<Ended>,
}

/// A request's place on the roll, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    roll: Arc<Roll>,
    id: RequestId,
}

impl Roll {
    /// Enters a request.
    pub(crate) fn enter(
        self: &Arc<Self>,
        id: RequestId,
        caller: Caller,
        prompt_tokens: u32,
        max_tokens: Option<u32>,
    ) -> Listed {
        let live = Live { caller, since: unix_seconds(), prompt_tokens, max_tokens };
        self.state().live.insert(id, live);
        self.changed.send_replace(());
        Listed { roll: self.clone(), id }
    }

    /// Whether the request waits or runs and is the caller's own.
    pub(crate) fn is_own(&self, id: RequestId, caller: Caller) -> bool {
        self.state().live.get(&id).is_some_and(|live| live.caller.owns_with(caller))
    }

    /// What the caller may see of it.
    pub(crate) fn seen_by(&self, caller: Caller) -> Requests {
        let state = self.state();
        let running = |(id, live): (&RequestId, &Live)| Running {
            id: id.0,
            since: live.since,
            prompt_tokens: live.prompt_tokens,
            max_tokens: live.max_tokens,
            yours: live.caller.owns_with(caller),
        };
        Requests {
            live: state.live.iter().map(running).collect(),
            ended: state.ended.iter().cloned().collect(),
        }
    }

    /// Marked at every change.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn end(&self, id: RequestId, ended: Ended) {
        let mut state = self.state();
        let Some(live) = state.live.remove(&id) else { return };
        state.ended.truncate(MAX_ENDED - 1);
        let prompt_tokens = live.prompt_tokens;
        state.ended.push_front(Ended { id: id.0, at: unix_seconds(), prompt_tokens, ..ended });
        drop(state);
        self.changed.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listed {
    /// The request has ended, with or without the line's figures.
    pub(crate) fn ended(&self, finish: &'static str, queued: Duration, timings: Option<&Timings>) {
        let mut ended = Ended { finish, queued_ms: millis(queued), ..Ended::default() };
        if let Some(timings) = timings {
            let generated = timings.generated_tokens;
            ended.cached_tokens = timings.cached_tokens;
            ended.generated_tokens = generated;
            ended.drafted_tokens = timings.drafted;
            ended.accepted_tokens = timings.accepted;
            ended.first_token_ms = (generated > 0).then(|| millis(queued + timings.prompt_time));
            let seconds = timings.generation_time.as_secs_f64();
            ended.tokens_per_second =
                (generated > 1 && seconds > 0.0).then(|| f64::from(generated - 1) / seconds);
        }
        self.roll.end(self.id, ended);
    }
}

impl Drop for Listed {
    /// Whoever says nothing more has left; after [`Listed::ended`] this changes nothing.
    fn drop(&mut self) {
        self.roll.end(self.id, Ended { finish: "cancelled", ..Ended::default() });
    }
}

/// To a tenth.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RequestId = RequestId(3);

    #[test]
    fn a_request_is_live_until_it_ends_and_then_among_the_last() {
        let roll = Arc::new(Roll::default());
        let mut changed = roll.watch();
        let listed = roll.enter(ID, Caller::default(), 9, Some(5));
        assert!(changed.has_changed().unwrap() && roll.is_own(ID, Caller::default()));
        changed.mark_unchanged();
        let timings = Timings {
            cached_tokens: 4,
            generated_tokens: 5,
            prompt_time: Duration::from_millis(30),
            generation_time: Duration::from_millis(200),
            ..Timings::default()
        };
        listed.ended("stop", Duration::from_millis(10), Some(&timings));
        drop(listed);
        assert!(changed.has_changed().unwrap() && !roll.is_own(ID, Caller::default()));
        let Requests { live, ended } = roll.seen_by(Caller::default());
        assert!(live.is_empty());
        let [ended] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((ended.finish, ended.prompt_tokens, ended.cached_tokens), ("stop", 9, 4));
        assert_eq!((ended.first_token_ms, ended.tokens_per_second), (Some(40.0), Some(20.0)));
    }

    #[test]
    fn a_request_whose_client_left_was_cancelled_and_only_the_last_ones_are_kept() {
        let roll = Arc::new(Roll::default());
        for id in 0..100 {
            drop(roll.enter(RequestId(id), Caller::default(), 1, None));
        }
        let Requests { ended, .. } = roll.seen_by(Caller::default());
        assert_eq!(ended.len(), MAX_ENDED);
        assert_eq!((ended[0].id, ended[0].finish, ended[0].first_token_ms), (99, "cancelled", None));
    }
}
