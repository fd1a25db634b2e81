//! A front for one sequence that guesses at random and checks every report against sequential decoding.

use std::collections::VecDeque;

use protocol::{
    Chunk, Close, Epoch, Frame, Hint, Open, Position, Report, SeqId, Token, Verdict, Window, WindowId, Work,
};

use crate::line::Line;
use crate::toy::{CONTEXT, Rng, open, reference};

/// How a front behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Tokens per window or chunk at most.
    pub(crate) width: usize,
    /// Windows of the current epoch in flight at most.
    pub(crate) depth: usize,
    /// Percent of guesses that are right.
    pub(crate) right: usize,
    /// Percent of steps that give the sequence up.
    pub(crate) cancel: usize,
    pub(crate) hints: bool,
}

#[derive(PartialEq, Debug)]
enum Phase {
    Unopened,
    Prompt(usize),
    Generating,
    Closing,
    Done,
}

pub(crate) struct Front {
    manner: Manner,
    open: Open,
    prompt: Vec<Token>,
    truth: Vec<Token>,
    phase: Phase,
    /// Prompt and generated tokens.
    committed: Vec<Token>,
    /// The committed tokens and the guesses sent behind them.
    text: Vec<Token>,
    /// Positions below it are sent in this epoch.
    edge: usize,
    epoch: Epoch,
    sent: VecDeque<Window>,
    windows: u32,
    progress: u32,
    ended: bool,
    pub(crate) verdicts: usize,
}

impl Front {
    pub(crate) fn new(seq: u64, manner: Manner, rng: &mut Rng) -> Self {
        let prompt: Vec<Token> = (0..1 + rng.below(20)).map(|_| rng.token()).collect();
        let limit = Position((prompt.len() + 1 + rng.below(30)) as u32);
        let open = Open { seed: rng.next(), limit, ignore_eos: rng.percent(50), ..open(seq) };
        let truth = reference(&prompt, open.seed, limit, open.ignore_eos);
        Self {
            manner,
            open,
            truth,
            phase: Phase::Unopened,
            committed: prompt.clone(),
            text: prompt.clone(),
            edge: prompt.len() - 1,
            prompt,
            epoch: Epoch(0),
            sent: VecDeque::new(),
            windows: 0,
            progress: 0,
            ended: false,
            verdicts: 0,
        }
    }

    pub(crate) fn seq(&self) -> SeqId {
        self.open.seq
    }

    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Unopened | Phase::Done)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether it heard the whole text, and not a cancelled part of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.ended
    }

    /// Sends one thing. False if there is nothing to send before the line says something.
    pub(crate) fn step(&mut self, line: &mut Line, rng: &mut Rng) -> bool {
        let seq = self.seq();
        if self.is_open() && self.phase != Phase::Closing && (self.ended || rng.percent(self.manner.cancel)) {
            if self.manner.hints {
                self.hint(line, rng, Hint::Drop { seq });
            }
            line.send(Frame::new(Work::Close(Close {
                seq,
                inputs: Position(self.committed.len() as u32 - 1),
            })));
            self.phase = Phase::Closing;
            return true;
        }
        match self.phase {
            Phase::Unopened => {
                line.send(Frame::new(Work::Open(Box::new(self.open.clone()))));
                self.phase = Phase::Prompt(0);
            }
            Phase::Prompt(base) if base + 1 < self.prompt.len() => {
                let n = (1 + rng.below(self.manner.width)).min(self.prompt.len() - 1 - base);
                let tokens = self.prompt[base..base + n].to_vec();
                let base_position = Position(base as u32);
                let chunk = Chunk { seq, base: base_position, tokens, follows: None };
                line.send(Frame::new(Work::Chunk(chunk)));
                self.phase = Phase::Prompt(base + n);
            }
            Phase::Prompt(_) | Phase::Generating => {
                self.phase = Phase::Generating;
                return self.send_window(line, rng);
            }
            Phase::Closing | Phase::Done => return false,
        }
        true
    }

    fn send_window(&mut self, line: &mut Line, rng: &mut Rng) -> bool {
        let in_flight = self.sent.iter().filter(|window| window.epoch == self.epoch).count();
        let room = CONTEXT as usize - self.edge;
        if in_flight >= self.manner.depth || room == 0 {
            return false;
        }
        let end = self.edge + (1 + rng.below(self.manner.width)).min(room);
        while self.text.len() < end {
            let right = self.truth.get(self.text.len() - self.prompt.len()).copied();
            let guess = right.filter(|_| rng.percent(self.manner.right)).unwrap_or_else(|| rng.token());
            self.text.push(guess);
        }
        let window = Window {
            seq: self.seq(),
            epoch: self.epoch,
            window: WindowId(self.windows),
            base: Position(self.edge as u32),
            tokens: self.text[self.edge..end].to_vec(),
            run_ahead: self.edge >= self.committed.len(),
            want_draft: None,
        };
        self.windows += 1;
        self.edge = end;
        self.sent.push_back(window.clone());
        line.send(Frame::new(Work::Window(window)));
        true
    }

    /// Tells some stages, in no order.
    fn hint(&self, line: &mut Line, rng: &mut Rng, hint: Hint) {
        for stage in 0..line.stages.len() {
            if rng.percent(60) {
                line.hint(stage, hint);
            }
            if rng.percent(10) {
                line.hint(stage, Hint::Drop { seq: SeqId(1000 + self.seq().0) });
            }
        }
    }

    pub(crate) fn hear(&mut self, report: Report, line: &mut Line, rng: &mut Rng) {
        match report {
            Report::Progress(progress) => {
                assert!(progress.next.0 > self.progress, "chunks pass in order");
                assert_eq!(progress.timings.len(), line.stages.len());
                self.progress = progress.next.0;
            }
            Report::Closed(_) => {
                assert_eq!(self.phase, Phase::Closing, "closed once, when asked");
                self.phase = Phase::Done;
            }
            Report::Verdict(verdict) if self.phase == Phase::Generating => {
                assert_eq!(verdict.timings.len(), line.stages.len());
                let epoch = self.epoch;
                self.commit(&verdict);
                if epoch != self.epoch && self.manner.hints {
                    self.hint(line, rng, Hint::Advance { seq: verdict.seq, epoch: self.epoch });
                }
            }
            Report::Verdict(_) => assert_eq!(self.phase, Phase::Closing),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, verdict: &Verdict) {
        self.verdicts += 1;
        assert!(!self.ended, "nothing comes after the end");
        assert_eq!(verdict.epoch, self.epoch, "windows of older epochs get no answer");
        let window = loop {
            let window = self.sent.pop_front().expect("a verdict answers a window in flight");
            if window.window == verdict.window {
                break window;
            }
            assert!(window.epoch < verdict.epoch, "a live window got no answer: {window:?}");
        };
        assert_eq!((window.base, window.epoch), (verdict.base, verdict.epoch));
        assert_eq!(verdict.base.0 as usize + 1, self.committed.len());
        assert!((1..=window.tokens.len()).contains(&verdict.tokens.len()), "{verdict:?}");
        let agreed = verdict.tokens.len() - 1;
        assert_eq!(verdict.tokens[..agreed], window.tokens[1..=agreed], "only the last may differ");
        self.committed.extend(&verdict.tokens);
        let generated = &self.committed[self.prompt.len()..];
        assert_eq!(generated, &self.truth[..generated.len()], "the text of sequential decoding");
        self.ended = generated.len() == self.truth.len();
        assert_eq!(verdict.ended.is_some(), self.ended);

        let last = self.committed.len() - 1;
        if self.text.get(last).is_some_and(|&claim| claim != self.committed[last]) {
            self.epoch = self.epoch.next();
            self.text.truncate(last);
            self.edge = last;
        }
        if self.text.len() == last {
            self.text.push(self.committed[last]);
        }
    }
}
