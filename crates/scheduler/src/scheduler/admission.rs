//! Who gets on the line and who leaves it: places in the queue, slots, prefixes to begin with, interruptions and ends.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::{Close, Hint, Open, Park, Position, SeqId, Work};

use super::beginning::Beginning;
use super::{Output, Scheduler, add};
use crate::prefixes::Trust;
use crate::queue::{Past, Patience, Waiting};
use crate::sequence::{Sequence, Start};
use crate::wanted::Wanted;
use crate::{Client, Drafting, Event, Failure, Finish, Refusal, RequestId, Shelved};

impl Scheduler {
    pub(super) fn make_room(&mut self, client: Client) -> Result<(), Refusal> {
        let limit = self.config.queue_limit;
        let Some(displaced) = self.queue.make_room(client) else {
            self.stats.refused += 1;
            return Err(Refusal::QueueFull { limit });
        };
        if let Some(id) = displaced {
            self.stats.failed += 1;
            self.emit(id, Event::Failed(Failure::QueueFull { limit }));
        }
        Ok(())
    }

    /// Starts waiting requests as far as slots are free. Those that start together take turns with their chunks.
    pub(super) fn admit(&mut self, now: Duration) {
        let mut started = VecDeque::new();
        while self.has_free_slot() {
            let running = |client| {
                let is_its =
                    |sequence: &&Sequence| !sequence.is_closing() && sequence.asked().client == client;
                self.sequences.values().filter(is_its).count()
            };
            let Some((id, waiting)) = self.queue.next(running, now) else { break };
            started.push_back(self.open(id, waiting, now));
        }
        while let Some(seq) = started.pop_front() {
            if self.send_next(seq, now) {
                started.push_back(seq);
            } else {
                self.tell_drafter(seq);
            }
        }
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.line_is_up && !self.is_held && self.sequences.len() < usize::from(self.config.n_slots)
    }

    /// Has running requests make room for waiting ones that are more urgent: one for each, beyond those whose slots are
    /// about to be free. The least urgent goes, of those the one that came last; never one that has made room before, so
    /// that nobody begins again and again.
    pub(super) fn preempt(&mut self, now: Duration) {
        if !self.line_is_up || self.is_held {
            return;
        }
        loop {
            let n_closing = self.sequences.values().filter(|sequence| sequence.is_closing()).count();
            let running = self.sequences.iter().filter(|(_, s)| s.may_yield());
            let Some((priority, _, seq)) =
                running.map(|(&seq, s)| (s.asked().priority, s.request(), seq)).max()
            else {
                return;
            };
            if self.queue.n_before(priority) <= n_closing {
                return;
            }
            self.stats.preempted += 1;
            if let Some(sequence) = self.sequences.get_mut(&seq) {
                sequence.yields();
            }
            self.interrupt(seq, self.turn(now), now);
        }
    }

    /// How long those wait who ran already.
    const fn turn(&self, now: Duration) -> Patience {
        Patience::Turn(now.saturating_add(self.config.queue_timeout))
    }

    fn open(&mut self, id: RequestId, waiting: Waiting, now: Duration) -> SeqId {
        let Waiting { mut request, own, probe, since, past, trust, has_yielded, .. } = waiting;
        let context = self.config.context as usize;
        request.prediction.iter_mut().for_each(|text| text.truncate(context));
        let seq = self.next_seq();
        let n_prompt = request.prompt.len() as u32;
        let room = self.config.context - n_prompt;
        let most = if request.is_prompt_only() { Some(0) } else { request.max_tokens };
        let limit = Position(n_prompt + most.map_or(room, |most| most.min(room)));
        let text = past.as_ref().map_or(&request.prompt, |past| &past.text).clone();
        let told = past.as_ref().map_or(0, |past| past.told);
        let wanted = request.of_prompt.and_then(|what| Wanted::new(what, n_prompt, told));
        let namespace = request.namespace.filter(|_| wanted.is_none());
        let beginning = namespace.map(|namespace| self.find_beginning(namespace, &text, trust));
        let Beginning { start, reuse, origin, held } = beginning.unwrap_or_default();
        if past.is_some() {
            self.stats.resumed += 1;
        } else {
            self.emit(id, Event::Started { cached: start.0, queued: now.saturating_sub(since) });
        }
        let mut sampler = request.sampler.clone();
        if let Some(grammar) = &mut sampler.grammar {
            grammar.said = text[n_prompt as usize..].to_vec();
        }
        if let (Some(mirostat), Some(mu)) = (&mut sampler.mirostat, past.as_ref().and_then(|past| past.mu)) {
            mirostat.mu = mu;
        }
        let open = Open {
            seq,
            start,
            reuse,
            held,
            seed: request.seed,
            choice: request.choice,
            sampler,
            limit,
            ignore_eos: request.ignore_eos,
            top_logprobs: request.top_logprobs,
            of_prompt: wanted.map(|wanted| wanted.what()),
            history: text[..start.0 as usize].to_vec(),
        };
        let n_text = text.len() as u32;
        let has_drafter = probe.is_none() && self.config.speculate.draft_model().is_some();
        let is_drafted = has_drafter && n_text + 2 <= limit.0;
        if is_drafted {
            let (reuse, held, of_prompt) = (None, None, None);
            let history = text.clone();
            let open = Open { start: Position(n_text), reuse, held, of_prompt, history, ..open.clone() };
            self.outputs.push_back(Output::Draft(id, Drafting::Open(Box::new(open))));
        }
        self.send(Work::Open(Box::new(open)));
        let asked = Box::new(request);
        let request = id;
        let start = Start {
            seq,
            request,
            asked,
            text,
            start,
            reuse,
            held,
            origin,
            wanted,
            past,
            limit,
            is_drafted,
            own,
            probe,
            has_yielded,
            now,
        };
        self.sequences.insert(seq, Sequence::new(start));
        self.by_request.insert(id, seq);
        seq
    }

    /// Takes a running request off the line; it waits to go on from its last token as a new sequence.
    pub(super) fn interrupt(&mut self, seq: SeqId, patience: Patience, now: Duration) {
        let Some(past) = self.sequences.get(&seq).map(Sequence::past) else { return };
        self.put_back(seq, Some(past), patience, Trust::All, now);
    }

    /// A stage does not have the prefix that a sequence was opened with: its request waits for a slot once more, before
    /// all others, and then computes its whole prompt.
    pub(super) fn begin_again(&mut self, seq: SeqId, prefix: SeqId, now: Duration) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let past = sequence.was_interrupted().then(|| sequence.past());
        let key = sequence.reuse().and_then(|reuse| reuse.stored);
        let len = sequence.begins_with().map_or(0, |(_, len)| len);
        let was_held = sequence.is_held();
        self.stats.lost_prefixes += 1;
        if let Some(key) = key
            && self.shelf.lost(key)
        {
            self.outputs.push_back(Output::Shelved(Shelved::Gone(key)));
        }
        if self.prefixes.mark_whole(prefix, len) {
            return self.put_back(seq, past, self.turn(now), Trust::Whole, now);
        }
        if self.prefixes.remove(prefix) || was_held {
            self.drop_prefix(prefix);
        }
        self.put_back(seq, past, self.turn(now), Trust::Nothing, now);
    }

    /// Ends a sequence and has its request wait for another one. Who was misled may have computed nothing worth keeping.
    fn put_back(&mut self, seq: SeqId, past: Option<Past>, patience: Patience, trust: Trust, now: Duration) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let (request, own) = (sequence.asked().clone(), sequence.take_own());
        let has_yielded = sequence.has_yielded();
        if let Some(id) = self.close(seq, trust == Trust::All) {
            // A probe is neither interrupted nor does it begin with anything that could be lost.
            let waiting =
                Waiting { request, own, probe: None, since: now, patience, past, trust, has_yielded };
            self.queue.push(id, waiting);
        }
    }

    pub(super) fn fail(&mut self, seq: SeqId, failure: Failure) {
        if let Some(id) = self.close(seq, false) {
            self.stats.failed += 1;
            self.emit(id, Event::Failed(failure));
        }
    }

    pub(super) fn finish(&mut self, seq: SeqId, finish: Finish, now: Duration) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let timings = sequence.timings(now);
        if let Some(id) = self.close(seq, true) {
            match finish {
                Finish::Cancelled => self.stats.cancelled += 1,
                Finish::Stop | Finish::Length => self.stats.finished += 1,
            }
            self.emit(id, Event::Done { finish, timings });
        }
    }

    /// Takes a sequence off the line; its slot stays in use until the tail has seen that. What it has computed is parked
    /// if it `may` be.
    fn close(&mut self, seq: SeqId, may_park: bool) -> Option<RequestId> {
        let sequence = self.sequences.get_mut(&seq)?;
        let id = sequence.request();
        let guessing = sequence.guessing_at_end();
        add(&mut self.stats, &guessing);
        let inputs = sequence.inputs();
        let namespace = sequence.asked().namespace.filter(|_| may_park);
        let computed = namespace.map(|namespace| {
            let tokens = sequence.computed();
            (namespace, tokens[..self.config.cuts.parked(tokens.len())].to_vec())
        });
        if sequence.close() {
            self.outputs.push_back(Output::Hint(Hint::Drop { seq }));
        }
        self.by_request.remove(&id);
        if sequence.is_drafted() {
            self.outputs.push_back(Output::Draft(id, Drafting::Close));
        }
        let gone = match computed {
            Some((namespace, tokens)) => {
                let len = Position(tokens.len() as u32);
                let gone = self.prefixes.insert(namespace, tokens, seq);
                if let Some((namespace, tokens)) = self.prefixes.tokens(seq) {
                    let store = self.shelf.ask(seq, namespace, tokens);
                    self.send(Work::Park(Park { seq, len, store }));
                }
                gone
            }
            None => vec![seq],
        };
        for gone in gone {
            if gone == seq {
                self.send(Work::Close(Close { seq, inputs }));
            } else {
                self.drop_prefix(gone);
            }
        }
        Some(id)
    }
}
