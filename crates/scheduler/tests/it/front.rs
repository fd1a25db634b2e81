//! A scheduler with its own time, whose outputs read as lines of text.

use std::time::Duration;

use protocol::{End, Epoch, Hint, Position, Progress, Report, SeqId, StageIndex, StageTiming, Token};
use protocol::{Verdict, WindowId, Work};
use scheduler::{Config, Drafting, Event, Output, Refusal, ReportFault, Request, RequestId, Scheduler};

/// A scheduler on a line of three stages that is up, and what it said.
pub(crate) struct Front {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Duration,
}

/// Two slots of 20 positions, chunks of 4 tokens, two of them in flight, one request waiting.
pub(crate) fn config() -> Config {
    Config { chunk_rows: 4, max_chunks_in_flight: 2, queue_limit: 1, ..Config::new(3, 2, 20, 100) }
}

pub(crate) fn request(n_prompt: usize, max_tokens: Option<u32>) -> Request {
    Request { seed: 5, max_tokens, ..Request::new((1..=n_prompt).map(|id| Token(id as i32)).collect()) }
}

impl Front {
    pub(crate) fn new(config: Config) -> Self {
        let mut scheduler = Scheduler::new(config);
        scheduler.line_up(Duration::ZERO);
        Self { scheduler, now: Duration::ZERO }
    }

    pub(crate) fn submit(&mut self, request: Request) -> Result<RequestId, Refusal> {
        self.scheduler.submit(request, self.now)
    }

    pub(crate) fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(id, self.now);
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    pub(crate) fn report(&mut self, from: u16, report: Report) -> Result<(), ReportFault> {
        self.scheduler.handle_report(StageIndex(from), report, self.now)
    }

    pub(crate) fn progress(&mut self, seq: u64, next: u32) -> Result<(), ReportFault> {
        let progress = Progress { seq: SeqId(seq), next: Position(next), timings: Vec::new() };
        self.report(2, Report::Progress(progress))
    }

    /// A verdict of one token on window `window` at `base`.
    pub(crate) fn verdict(
        &mut self,
        seq: u64,
        window: u32,
        base: u32,
        token: i32,
        ended: Option<End>,
    ) -> Result<(), ReportFault> {
        self.report(2, Report::Verdict(Box::new(verdict(seq, window, base, token, ended))))
    }

    pub(crate) fn closed(&mut self, seq: u64) -> Result<(), ReportFault> {
        self.report(2, Report::Closed(SeqId(seq)))
    }

    /// Everything that goes out now, one line each.
    pub(crate) fn outputs(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.scheduler.poll_output()).map(|output| line(&output)).collect()
    }
}

pub(crate) fn verdict(seq: u64, window: u32, base: u32, token: i32, ended: Option<End>) -> Verdict {
    Verdict {
        seq: SeqId(seq),
        epoch: Epoch(0),
        window: WindowId(window),
        base: Position(base),
        tokens: vec![Token(token)],
        ended,
        logprobs: Vec::new(),
        mu: None,
        timings: vec![StageTiming { queue_us: 1, compute_us: 10, batch_rows: 2 }; 3],
        company: protocol::Company::Alone,
        drafts: false,
    }
}

fn ids(tokens: &[Token]) -> Vec<i32> {
    tokens.iter().map(|token| token.0).collect()
}

fn line(output: &Output) -> String {
    match output {
        Output::Work(frame) => match &frame.work {
            Work::Open(open) => format!("s{} open, limit {}", open.seq, open.limit),
            Work::Chunk(chunk) => format!("s{} chunk at {} {:?}", chunk.seq, chunk.base, ids(&chunk.tokens)),
            Work::Window(window) => {
                format!(
                    "s{} window {} at {} {:?}",
                    window.seq,
                    window.window,
                    window.base,
                    ids(&window.tokens)
                )
            }
            Work::Close(close) => format!("s{} close", close.seq),
            Work::Park(_) => format!("unexpected {:?}", frame.work),
        },
        Output::Hint(Hint::Drop { seq }) => format!("s{seq} drop"),
        Output::Hint(Hint::Together { sequences }) => format!("{sequences} together"),
        Output::Hint(Hint::Advance { seq, epoch }) => format!("s{seq} advance to e{epoch}"),
        Output::Event(id, event) => match event {
            Event::Started { queued, .. } => format!("r{} started after {queued:?}", id.0),
            Event::Prompt(found) => format!("r{} {} of its prompt", id.0, found.len()),
            Event::Tokens { tokens, .. } => format!("r{} tokens {:?}", id.0, ids(tokens)),
            Event::Done { finish, .. } => format!("r{} done: {finish:?}", id.0),
            Event::Failed(failure) => format!("r{} failed: {failure}", id.0),
        },
        Output::Shelved(change) => format!("{change:?}"),
        Output::Draft(id, drafting) => match drafting {
            Drafting::Open(open) => format!("r{} to be drafted after {:?}", id.0, ids(&open.history)),
            Drafting::Text(text) => {
                format!("r{} text at {} in e{}: {:?}", id.0, text.from, text.epoch, ids(&text.tokens))
            }
            Drafting::Close => format!("r{} no longer drafted", id.0),
        },
    }
}
