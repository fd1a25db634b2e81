//! A front that drives the sequences' pipelines itself: any width and depth, any guesses, verdicts acted on late.
//! It stands for every scheduler that keeps to the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::{
    Chunk, Close, End, Frame, Hint, Position, Report, SeqId, StageIndex, Token, Verdict, Window, Work,
};
use spec::{Pipeline, Setup};

use super::proposals::Proposer;
use super::{Front, Guessed, Judgement, Sent, UnderWay};
use crate::check::{Ending, Stories, Violation};
use crate::random::Random;
use crate::scenario::{Ask, Limits};

/// How wide and deep sequences guess, if it is not drawn for each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reach {
    pub(crate) width: Option<u32>,
    pub(crate) depth: Option<u32>,
}

pub(crate) struct Guesses {
    asks: Vec<Ask>,
    limits: Limits,
    reach: Reach,
    random: Random,
    line_is_up: bool,
    /// Whether sequences begin before the `Close` that makes room for them has come back.
    is_eager: bool,
    /// Requests that have not come yet, the next one last.
    coming: Vec<usize>,
    waiting: VecDeque<usize>,
    running: BTreeMap<SeqId, Running>,
    /// Sequences whose `Close` has not come back.
    closing: Vec<SeqId>,
    next_seq: SeqId,
    cancels: BTreeMap<(Duration, usize), SeqId>,
    /// When to try again for sequences that held something back.
    nudge: Option<Duration>,
    sent: VecDeque<Sent>,
    stories: Stories,
    guessed: Guessed,
}

struct Running {
    request: usize,
    pipeline: Pipeline,
    /// Prompt tokens sent in chunks; all but the last one are.
    n_chunked: usize,
    chunks_in_flight: u32,
    width: u32,
    proposer: Proposer,
}

impl Guesses {
    pub(crate) fn new(
        asks: Vec<Ask>,
        limits: Limits,
        reach: Reach,
        stories: Stories,
        mut random: Random,
    ) -> Self {
        let mut coming: Vec<_> = (0..asks.len()).collect();
        coming.sort_by_key(|&request| std::cmp::Reverse(asks[request].at));
        Self {
            asks,
            limits,
            reach,
            is_eager: random.percent(30),
            random,
            line_is_up: false,
            coming,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            closing: Vec::new(),
            next_seq: SeqId(0),
            cancels: BTreeMap::new(),
            nudge: None,
            sent: VecDeque::new(),
            stories,
            guessed: Guessed::default(),
        }
    }

    fn has_room(&self) -> bool {
        let n_slots = usize::from(self.limits.n_slots);
        if self.is_eager {
            self.running.len() < n_slots && self.n_sequences() < 2 * n_slots
        } else {
            self.n_sequences() < n_slots
        }
    }

    fn start(&mut self, now: Duration) {
        while self.line_is_up && self.has_room() {
            let Some(request) = self.waiting.pop_front() else { return };
            let seq = self.next_seq;
            self.next_seq = SeqId(seq.0 + 1);
            let ask = &self.asks[request];
            let open = ask.open(seq, self.limits.context);
            let width = self.reach.width.unwrap_or_else(|| self.random.between(1, self.limits.max_width));
            let depth = self.reach.depth.unwrap_or_else(|| self.random.between(1, 16));
            // Of a prompt alone no window is ever sent.
            let limit = open.limit.max(Position(ask.prompt.len() as u32 + 1));
            let setup = Setup { seq, n_vocab: self.limits.n_vocab, limit, max_in_flight: depth as usize };
            let pipeline = Pipeline::new(setup, ask.prompt.clone());
            let proposer = Proposer::new(self.random.fork(), self.limits.n_vocab, self.limits.end_token);
            let running = Running { request, pipeline, n_chunked: 0, chunks_in_flight: 0, width, proposer };
            if let Some(patience) = ask.patience {
                self.cancels.insert((now + patience, request), seq);
            }
            self.running.insert(seq, running);
            self.stories.started(request);
            self.send(Work::Open(Box::new(open)));
            self.advance(seq, now);
        }
    }

    /// Sends what the sequence may send, sometimes less.
    fn advance(&mut self, seq: SeqId, now: Duration) {
        while let Some(running) = self.running.get_mut(&seq) {
            if self.random.percent(5) {
                let later = now + self.random.micros(50, 2000);
                self.nudge = Some(self.nudge.map_or(later, |nudge| nudge.min(later)));
                return;
            }
            let ask = &self.asks[running.request];
            let prompt = &ask.prompt;
            let work = if running.n_chunked + usize::from(!ask.is_prompt_only()) < prompt.len() {
                if running.chunks_in_flight == self.limits.max_chunks {
                    return;
                }
                running.next_chunk(seq, ask, self.random.between(1, self.limits.chunk_rows))
            } else if ask.is_prompt_only() {
                return;
            } else {
                let most = running.width;
                let width = self.reach.width.unwrap_or_else(|| self.random.between(1, most));
                let truth = self.stories.expected(running.request);
                let (window, was_refused) = running.next_window(width as usize, prompt.len(), truth);
                self.guessed.refused += u64::from(was_refused);
                let Some(window) = window else { return };
                Work::Window(window)
            };
            self.send(work);
        }
    }

    fn handle_verdict(&mut self, verdict: &Verdict, now: Duration) -> Result<(), String> {
        let seq = verdict.seq;
        let Some(running) = self.running.get_mut(&seq) else { return self.known(seq) };
        if running.chunks_in_flight > 0 {
            return Err("a verdict before the prompt has passed through".into());
        }
        let sent = running.pipeline.optimistic().to_vec();
        let commit = running.pipeline.handle_verdict(verdict).map_err(|fault| fault.to_string())?;
        let request = running.request;
        if commit.opened.is_some() {
            running.proposer.learn(sent);
        }
        self.stories.tokens(request, &verdict.tokens);
        if let Some(end) = verdict.ended {
            self.end(seq, Ending::Done(end));
            self.start(now);
            return Ok(());
        }
        if let Some(epoch) = commit.opened
            && self.random.percent(80)
        {
            self.sent.push_back(Sent::Hint(Hint::Advance { seq, epoch }));
        }
        self.advance(seq, now);
        Ok(())
    }

    fn end(&mut self, seq: SeqId, ending: Ending) {
        let Some(running) = self.running.remove(&seq) else { return };
        self.count(&running);
        if running.pipeline.n_in_flight() > 0 && self.random.percent(80) {
            self.sent.push_back(Sent::Hint(Hint::Drop { seq }));
        }
        self.closing.push(seq);
        let n_committed = running.pipeline.committed().len();
        self.send(Work::Close(Close { seq, inputs: Position(n_committed as u32 - 1) }));
        self.stories.ended(running.request, ending);
    }

    fn count(&mut self, running: &Running) {
        let stats = running.pipeline.stats();
        self.guessed.windows += u64::from(stats.windows);
        self.guessed.stale_windows += u64::from(stats.stale_windows);
        self.guessed.proposed += u64::from(stats.proposed);
        self.guessed.accepted += u64::from(stats.accepted);
    }

    fn hear(&mut self, from: StageIndex, report: Report, now: Duration) -> Result<(), String> {
        match report {
            Report::State(_)
            | Report::Counters(_)
            | Report::Notice(_)
            | Report::Leaving
            | Report::Draft(_)
            | Report::Stored(_) => Ok(()),
            Report::Verdict(verdict) => self.handle_verdict(&verdict, now),
            Report::Progress(progress) => {
                let Some(running) = self.running.get_mut(&progress.seq) else {
                    return self.known(progress.seq);
                };
                running.chunks_in_flight =
                    running.chunks_in_flight.checked_sub(1).ok_or("progress of a chunk that was not sent")?;
                let ask = &self.asks[running.request];
                if ask.is_prompt_only() && progress.next.0 as usize == ask.prompt.len() {
                    self.end(progress.seq, Ending::Done(End::Limit));
                    self.start(now);
                } else {
                    self.advance(progress.seq, now);
                }
                Ok(())
            }
            Report::Prompt(part) => {
                let Some(running) = self.running.get(&part.seq) else { return self.known(part.seq) };
                self.stories.found(running.request, part.found);
                Ok(())
            }
            Report::Closed(seq) => {
                let index = self.closing.iter().position(|&closing| closing == seq);
                self.closing.swap_remove(index.ok_or("closed without a close")?);
                self.start(now);
                Ok(())
            }
            Report::Fault(fault) => {
                if let Some(seq) = fault.seq {
                    self.end(seq, Ending::Failed(format!("stage {from}: {}", fault.kind)));
                }
                Ok(())
            }
        }
    }

    /// A report about a sequence that is over was on its way; about one that never was, it is a lie.
    fn known(&self, seq: SeqId) -> Result<(), String> {
        if seq < self.next_seq { Ok(()) } else { Err(format!("sequence {seq} was never opened")) }
    }

    fn send(&mut self, work: Work) {
        self.sent.push_back(Sent::Work(Frame::new(work)));
    }
}

impl Running {
    fn next_chunk(&mut self, seq: SeqId, ask: &Ask, most: u32) -> Work {
        let base = self.n_chunked;
        let end = ask.prompt.len() - usize::from(!ask.is_prompt_only());
        self.n_chunked = (base + most as usize).min(end);
        self.chunks_in_flight += 1;
        let tokens = ask.prompt[base..self.n_chunked].to_vec();
        let follows = ask.prompt.get(self.n_chunked).copied().filter(|_| ask.of_prompt.is_some());
        Work::Chunk(Chunk { seq, base: Position(base as u32), tokens, follows })
    }

    /// The next window with some proposal, or without one if it was refused, and whether it was.
    fn next_window(&mut self, width: usize, n_prompt: usize, truth: &[Token]) -> (Option<Window>, bool) {
        let at = self.pipeline.optimistic().len();
        let ahead = truth.get(at - n_prompt..).unwrap_or(&[]);
        let proposal = self.proposer.propose(Position(at as u32), width, ahead);
        let before = self.pipeline.stats();
        match self.pipeline.next_window(width, &proposal) {
            Ok(window) => (window, false),
            Err(_) => {
                assert_eq!(self.pipeline.stats(), before, "nothing of a refused proposal is sent");
                (self.pipeline.next_window(width, &[]).expect("no proposal is no reason to refuse"), true)
            }
        }
    }
}

impl Front for Guesses {
    /// Nothing is taken over: sequences begin with their prompts.
    fn line_up(&mut self, _lost_by: Option<u16>, now: Duration) {
        self.line_is_up = true;
        self.start(now);
    }

    /// Whoever guesses and checks does not know how many stages there are.
    fn reshape(&mut self, _n_stages: u16, _line: [u8; 32]) {}

    fn line_lost(&mut self, _now: Duration) {
        self.line_is_up = false;
        self.stories.interrupted();
        for (_, running) in std::mem::take(&mut self.running) {
            self.count(&running);
            self.stories.ended(running.request, Ending::LineLost);
        }
        self.closing.clear();
        self.sent.clear();
    }

    fn handle_report(
        &mut self,
        from: StageIndex,
        report: Report,
        now: Duration,
    ) -> Result<Judgement, String> {
        self.hear(from, report, now).map(|()| Judgement::Fine)
    }

    fn wake(&mut self, now: Duration) -> Judgement {
        while let Some(&request) = self.coming.last().filter(|&&request| self.asks[request].at <= now) {
            self.coming.pop();
            self.stories.accepted(request);
            self.waiting.push_back(request);
        }
        while let Some(cancel) = self.cancels.first_entry().filter(|cancel| cancel.key().0 <= now) {
            let (_, request) = *cancel.key();
            let seq = cancel.remove();
            if self.running.contains_key(&seq) {
                self.stories.cancelled(request);
                self.end(seq, Ending::Cancelled);
            }
        }
        self.start(now);
        if self.nudge.is_some_and(|nudge| nudge <= now) {
            self.nudge = None;
            for seq in self.running.keys().copied().collect::<Vec<_>>() {
                self.advance(seq, now);
            }
        }
        Judgement::Fine
    }

    fn next_wake(&self) -> Option<Duration> {
        let coming = self.coming.last().map(|&request| self.asks[request].at);
        let cancel = self.cancels.first_key_value().map(|((at, _), _)| *at);
        [coming, cancel, self.nudge].into_iter().flatten().min()
    }

    fn poll_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }

    fn stories(&mut self) -> &mut Stories {
        &mut self.stories
    }

    fn guessed(&self) -> Guessed {
        self.guessed
    }

    fn misdeeds(&mut self) -> Vec<Violation> {
        Vec::new()
    }

    fn under_way(&self) -> UnderWay {
        let prefilling = self.running.values().any(|running| running.chunks_in_flight > 0);
        UnderWay { prefilling, closing: !self.closing.is_empty() }
    }

    fn n_sequences(&self) -> usize {
        self.running.len() + self.closing.len()
    }
}
