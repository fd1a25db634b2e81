//! What a drafter computes next: the pure part.
//!
//! Each request that is drafted has a *lane*, the slot of the draft model's memory with the same number. A lane's text is
//! what the front has told (committed tokens and those sent ahead), then the drafter's own continuation. Whatever the
//! front tells cuts the text back to the common prefix; what the engine holds of that prefix is kept, also from one
//! request to the next. One call is under way at a time, and texts may change meanwhile: its results count as far as
//! the text is still the same.
//!
//! Does not know the engine, threads or the clock; samplers are the driver's, told here what to record.

use std::collections::BTreeMap;

use protocol::{Epoch, Open, Position, SamplerParams, Token};
use scheduler::{Drafting, RequestId};
use spec::{Block, Draft, TextChange};
use stage::{EngineShape, Slot, Span, Want};

/// Tokens drafted beyond what was sent, at most. Enough for the widest window while the next ones are drafted; all of
/// them are computed for nothing when a guess is wrong.
pub(crate) const AHEAD: usize = 16;
/// Rows of a prompt in one call at most: others wait for no longer than that.
const CHUNK: usize = 64;
/// So many rows may compute logits that nobody reads, where only the last one's are wanted; more are split in two calls.
const FEW: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Core {
    lanes: Vec<Lane>,
    by_request: BTreeMap<RequestId, usize>,
    context: usize,
    max_rows: usize,
    end_tokens: Vec<Token>,
    calls: u64,
    is_computing: bool,
}

#[derive(Debug, Default)]
struct Lane {
    owner: Option<RequestId>,
    /// For its sampler.
    open: Option<Box<Open>>,
    /// What was told, then the continuation. Stays when the request is over, as long as the engine holds it.
    text: Vec<Token>,
    n_told: usize,
    /// Of the continuation.
    probabilities: Vec<f32>,
    epoch: Epoch,
    /// Whether anybody wants drafts yet.
    is_wanted: bool,
    /// The continuation has changed since it was given out.
    is_news: bool,
    /// Leading tokens of the text that the engine holds.
    held: usize,
    /// Positions that the engine holds; none if a call failed.
    stored: Option<usize>,
    /// Leading tokens of the text that the sampler has recorded; 0 if it must be made anew.
    recorded: usize,
    /// During a call: leading tokens of the text that are as they were when it began.
    same: usize,
    /// The call that served it last.
    served: u64,
}

/// One engine call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// Slots to cut before.
    pub(crate) cuts: Vec<(Slot, Position)>,
    pub(crate) spans: Vec<Span>,
    pub(crate) tokens: Vec<Token>,
    /// What to sample from the last row of each span that wants logits, in order.
    pub(crate) picks: Vec<Pick>,
}

/// A token to sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pick {
    pub(crate) slot: Slot,
    owner: RequestId,
    /// Make the sampler anew from this first.
    pub(crate) fresh: Option<Box<Open>>,
    /// Record these first.
    pub(crate) record: Vec<Token>,
    pub(crate) position: Position,
}

/// A sampled token and its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Picked {
    pub(crate) token: Token,
    /// Without temperature and filters.
    pub(crate) probability: f32,
}

impl Core {
    pub(crate) fn new(shape: &EngineShape) -> Self {
        let lanes = (0..shape.n_slots).map(|_| Lane { stored: Some(0), ..Lane::default() }).collect();
        Self {
            lanes,
            by_request: BTreeMap::new(),
            context: shape.context as usize,
            max_rows: shape.max_rows,
            end_tokens: shape.end_tokens.clone(),
            calls: 0,
            is_computing: false,
        }
    }

    /// What the scheduler says about a request. One that begins when no lane is free is not drafted.
    pub(crate) fn handle(&mut self, id: RequestId, drafting: Drafting) {
        match drafting {
            Drafting::Open(open) => self.open(id, *open),
            Drafting::Text(change) => {
                if let Some(&at) = self.by_request.get(&id) {
                    self.lanes[at].tell(change);
                }
            }
            Drafting::Close => self.close(id),
        }
    }

    /// A draft to give out, if there is one.
    pub(crate) fn poll_draft(&mut self) -> Option<(RequestId, Draft)> {
        let lane = self.lanes.iter_mut().find(|lane| lane.is_news && lane.is_wanted)?;
        lane.is_news = false;
        let owner = lane.owner?;
        let block = Block {
            tokens: lane.text[lane.n_told..].to_vec(),
            run: 0,
            probabilities: lane.probabilities.clone(),
        };
        Some((owner, Draft { epoch: lane.epoch, base: Position(lane.n_told as u32), block }))
    }

    /// The next call, if there is anything to compute. Each must be answered before the next one.
    pub(crate) fn next_call(&mut self) -> Option<Call> {
        if self.is_computing {
            return None;
        }
        let ready: Vec<_> = (0..self.lanes.len()).map(|at| self.rows(at)).collect();
        let lead = (0..ready.len()).filter(|&at| ready[at] > 0).min_by_key(|&at| self.lanes[at].served)?;
        let n_rows = ready[lead];
        let most = (self.max_rows / n_rows).max(1);
        let (mut start, mut end) = (lead, lead + 1);
        while end < ready.len() && end - start < most && ready[end] == n_rows {
            end += 1;
        }
        while start > 0 && end - start < most && ready[start - 1] == n_rows {
            start -= 1;
        }
        self.calls += 1;
        self.is_computing = true;
        let mut call = Call { cuts: Vec::new(), spans: Vec::new(), tokens: Vec::new(), picks: Vec::new() };
        for at in start..end {
            let lane = &mut self.lanes[at];
            lane.served = self.calls;
            lane.begin(at, n_rows, &mut call);
        }
        Some(call)
    }

    /// A call has been computed: what was picked, in order; or it has failed, and its requests are no longer drafted.
    pub(crate) fn handle_done(&mut self, call: &Call, outcome: Option<&[Picked]>) {
        self.is_computing = false;
        for span in &call.spans {
            let lane = &mut self.lanes[usize::from(span.slot.0)];
            lane.stored = outcome.map(|_| span.base.plus(span.n_rows).0 as usize);
            lane.held = lane.stored.map_or(0, |stored| stored.min(lane.same));
            lane.recorded = lane.recorded.min(lane.same);
            if outcome.is_none()
                && let Some(owner) = lane.owner
            {
                self.close(owner);
            }
        }
        for (pick, picked) in call.picks.iter().zip(outcome.unwrap_or_default()) {
            let at = usize::from(pick.slot.0);
            let may_grow = self.may_grow(at);
            let lane = &mut self.lanes[at];
            let position = pick.position.0 as usize;
            let is_same = lane.owner == Some(pick.owner) && lane.same == position;
            lane.recorded = 0;
            if !is_same {
                continue;
            }
            if lane.text.len() == position && may_grow {
                lane.text.push(picked.token);
                lane.probabilities.push(picked.probability);
                lane.is_news = true;
            }
            if lane.text.get(position) == Some(&picked.token) {
                lane.recorded = position + 1;
            }
        }
        for span in &call.spans {
            // A last row whose logits were of no use is computed again when they are wanted.
            let lane = &mut self.lanes[usize::from(span.slot.0)];
            lane.held = lane.held.min(lane.text.len().saturating_sub(1));
        }
    }

    fn open(&mut self, id: RequestId, open: Open) {
        let Some(at) = self.lanes.iter().position(|lane| lane.owner.is_none()) else { return };
        self.by_request.insert(id, at);
        self.lanes[at].open(id, open);
    }

    fn close(&mut self, id: RequestId) {
        let Some(at) = self.by_request.remove(&id) else { return };
        let lane = &mut self.lanes[at];
        lane.owner = None;
        lane.is_wanted = false;
        lane.is_news = false;
    }

    /// Whether one more token may be drafted there.
    fn may_grow(&self, at: usize) -> bool {
        let lane = &self.lanes[at];
        let (Some(_), Some(open)) = (lane.owner, &lane.open) else { return false };
        let n_ahead = lane.text.len() - lane.n_told;
        let is_over = n_ahead > 0
            && !open.ignore_eos
            && lane.text.last().is_some_and(|last| self.end_tokens.contains(last));
        n_ahead < AHEAD && !is_over && lane.text.len() < (open.limit.0 as usize).min(self.context + 1)
    }

    /// Rows that the lane wants in its next call; 0 for none.
    fn rows(&self, at: usize) -> usize {
        if !self.may_grow(at) {
            return 0;
        }
        let lane = &self.lanes[at];
        match lane.text.len() - lane.held {
            few if few <= FEW.min(self.max_rows) => few,
            many => (many - 1).min(CHUNK).min(self.max_rows),
        }
    }
}

impl Lane {
    fn open(&mut self, id: RequestId, open: Open) {
        self.owner = Some(id);
        self.epoch = Epoch(0);
        self.is_wanted = false;
        self.is_news = false;
        self.recorded = 0;
        self.probabilities.clear();
        let common = common_prefix(&self.text, &open.history);
        self.text.clone_from(&open.history);
        self.n_told = self.text.len();
        self.cut(common);
        self.open = Some(Box::new(drafting(open)));
    }

    /// The text is now what the change says; a continuation that it agrees with stays.
    fn tell(&mut self, change: TextChange) {
        let TextChange { epoch, from, tokens } = change;
        let from = from.0 as usize;
        assert!(from <= self.n_told, "a change begins where everything before has been told");
        let end = from + tokens.len();
        let common = from + common_prefix(&self.text[from..], &tokens);
        if common == end && end >= self.n_told {
            self.probabilities.drain(..end - self.n_told);
            self.is_news |= !self.is_wanted || epoch != self.epoch;
            self.is_news &= !self.probabilities.is_empty();
        } else {
            self.text.truncate(common);
            self.text.extend(&tokens[common - from..]);
            self.probabilities.clear();
            self.is_news = false;
            self.cut(common);
        }
        self.n_told = end;
        self.epoch = epoch;
        self.is_wanted = true;
    }

    /// Only the first `common` tokens of the text are as before.
    fn cut(&mut self, common: usize) {
        self.same = self.same.min(common);
        // The last row is computed again if need be: its logits are what is wanted.
        self.held = self.held.min(common).min(self.text.len().saturating_sub(1));
        if self.recorded > common {
            self.recorded = 0;
        }
    }

    /// Adds its next rows to a call.
    fn begin(&mut self, at: usize, n_rows: usize, call: &mut Call) {
        let slot = Slot(at as u16);
        let base = Position(self.held as u32);
        if self.stored != Some(self.held) {
            call.cuts.push((slot, base));
        }
        let is_last = self.held + n_rows == self.text.len();
        call.spans.push(Span { slot, base, n_rows, want: Want::logits(is_last) });
        call.tokens.extend_from_slice(&self.text[self.held..self.held + n_rows]);
        self.same = self.text.len();
        if let (true, Some(owner), Some(open)) = (is_last, self.owner, &self.open) {
            call.picks.push(Pick {
                slot,
                owner,
                fresh: (self.recorded == 0).then(|| open.clone()),
                record: self.text[self.recorded..].to_vec(),
                position: Position(self.text.len() as u32),
            });
        }
    }
}

/// How a drafter samples for a request: as the tail does, but that mirostat, whose state depends on what the tail's
/// logits were, drafts as its temperature alone, and that a grammar is left to the front, which knows it anyway and cuts
/// drafts where they leave it. Probabilities are always wanted.
fn drafting(open: Open) -> Open {
    let mut sampler = SamplerParams { grammar: None, ..open.sampler };
    if sampler.mirostat.take().is_some() {
        let plain = SamplerParams::default();
        sampler = SamplerParams {
            top_k: plain.top_k,
            top_p: plain.top_p,
            min_p: plain.min_p,
            typical_p: plain.typical_p,
            top_n_sigma: plain.top_n_sigma,
            xtc: plain.xtc,
            dynatemp_range: plain.dynatemp_range,
            ..sampler
        };
    }
    Open { sampler, top_logprobs: Some(0), start: Position(0), history: Vec::new(), ..open }
}

fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
