//! The model's own blocks that draft (*NextN*), beside the layers of a tail: a second context of llama.cpp.
//!
//! Such a block reads a token and the hidden row that the layers, behind their last norm, have given for the token
//! *before* it; it has keys and values of its own. So it has to be told every token that the layers compute, each with the
//! row of its predecessor. Owns: that these rows reach it, shifted by one, across calls, cuts, saved slots and guesses that
//! were wrong; and drafting, several sequences in one call.
//!
//! Nothing here may disturb decoding: what the block is told is told late, when a draft is wanted, in the call of its first
//! token, or when nothing else is to be done. While nobody wants drafts that is a call for many tokens, which costs next to
//! nothing for each. A slot whose rows are lost goes on with an empty memory, as at the beginning of a text.
//!
//! Of a prefix that is cut where the row before the cut is not kept any more, the block keeps one position more than the
//! layers: if the same token comes there again, what the block has of it is right, and the layers give its row anew. So
//! whoever wants good drafts behind a prefix lets the layers compute its last token again.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use protocol::{Position, Token};
use stage::{Drafted, EngineError, Slot, Span, Wish};

use crate::LoadError;
use crate::batch::Batch;
use crate::context::{Context, ContextOptions, NotComputed};
use crate::model::Model;

/// Hidden rows that are kept of each slot: so far back it can be cut without losing the row before the cut. Guesses that
/// were wrong are fewer, since the last stage computes no second window before the first one is judged.
const KEPT: usize = 64;

/// See the module.
pub(crate) struct NextN {
    context: Context,
    /// Values in a hidden row.
    width: usize,
    slots: Vec<Held>,
}

/// What is known of a slot.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Positions that the layers have computed.
    len: u32,
    /// Position of the first of `tokens`.
    first: u32,
    /// All tokens that the block has been told, or will be.
    tokens: Vec<Token>,
    /// The layers' last hidden rows, those below `len`, row-major.
    rows: Vec<f32>,
    /// Positions that the block has in its memory, or has given up: `len` at most, but for one more behind a cut.
    told: u32,
}

impl Held {
    /// As at the beginning of a text that has `len` positions nobody knows.
    fn forget(&mut self, len: u32) {
        *self = Self { len, first: len, told: len, ..Self::default() };
    }

    /// The token at a position.
    fn token(&self, position: u32) -> Option<Token> {
        self.tokens.get(position.checked_sub(self.first)? as usize).copied()
    }

    /// Cuts what the layers have computed, and one position further back what the block has if the row before the cut is
    /// lost. The block's memory has to be cut to `told` positions if that has changed.
    fn truncate(&mut self, len: u32, width: usize) {
        let n_lost = (self.len - len) as usize * width;
        self.rows.truncate(self.rows.len().saturating_sub(n_lost));
        self.len = len;
        let keeps_one = len > 0 && self.told > len && self.token(len).is_some() && self.rows.is_empty();
        self.told = self.told.min(len + u32::from(keeps_one));
        self.tokens.truncate(self.told.max(len).saturating_sub(self.first) as usize);
        self.first = self.first.min(len);
    }

    /// Whether the block has the position behind those that the layers have.
    const fn is_ahead(&self) -> bool {
        self.told > self.len
    }

    /// Gives up the position that the block has more than the layers.
    fn fall_back(&mut self) {
        self.tokens.truncate((self.len - self.first) as usize);
        self.told = self.len;
    }

    /// The layers have computed these.
    fn extend(&mut self, tokens: &[Token], rows: &[f32]) {
        let n_known = (self.told.saturating_sub(self.len) as usize).min(tokens.len());
        self.tokens.extend_from_slice(&tokens[n_known..]);
        self.rows.extend_from_slice(rows);
        self.len += tokens.len() as u32;
    }

    /// The row of the token before `position`; none at the beginning, and where it is lost.
    fn before(&self, position: u32, width: usize) -> Option<&[f32]> {
        let first = self.len - (self.rows.len() / width) as u32;
        let at = position.checked_sub(1)?.checked_sub(first)? as usize;
        self.rows.get(at * width..(at + 1) * width)
    }

    /// Positions that the block has not been told.
    const fn owed(&self) -> Range<u32> {
        self.told..self.len
    }

    /// What the block is told of a position that it is owed: the token there, and the row before it.
    fn telling<'a>(&'a self, position: u32, zeros: &'a [f32]) -> (Token, &'a [f32]) {
        let token = self.tokens[(position - self.first) as usize];
        (token, self.before(position, zeros.len()).unwrap_or(zeros))
    }

    /// The block has been told all.
    fn settle(&mut self) {
        self.told = self.told.max(self.len);
    }

    /// Drops the oldest rows but for [`KEPT`] and those that have not been told.
    fn trim(&mut self, width: usize) {
        let kept = KEPT.max(self.owed().len() + 1);
        let n = self.rows.len().saturating_sub(kept * width);
        self.rows.drain(..n);
    }
}

/// One sequence while it is drafted.
struct Draft {
    wish: Wish,
    drafted: Drafted,
    /// The next input: the last token and the row before it.
    token: Token,
    row: Vec<f32>,
}

impl NextN {
    /// A context for the blocks in `model`, which was loaded with them. `options` are those of the layers' context.
    pub(crate) fn new(model: Arc<Model>, options: &ContextOptions, path: &Path) -> Result<Self, LoadError> {
        let width = model.output_width();
        let options = ContextOptions { undo_rows: 0, capture: None, ..options.clone() };
        let n_slots = usize::from(options.n_slots);
        let context = Context::drafting(model, &options, path)?;
        Ok(Self { context, width, slots: vec![Held::default(); n_slots] })
    }

    /// Values in a hidden row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The layers have computed a call: its tokens and their hidden rows, in its order.
    pub(crate) fn note(&mut self, spans: &[Span], tokens: &[Token], rows: &[f32]) {
        let mut at = 0;
        for span in spans {
            let held = &mut self.slots[usize::from(span.slot.0)];
            if held.len != span.base.0 {
                held.forget(span.base.0);
                self.context.cut(span.slot, 0);
            }
            if held.token(held.len).is_some_and(|token| token != tokens[at]) {
                self.fall_back(span.slot);
            }
            let end = at + span.n_rows;
            let rows = &rows[at * self.width..end * self.width];
            self.slots[usize::from(span.slot.0)].extend(&tokens[at..end], rows);
            at = end;
        }
    }

    /// Tells the block whatever it has not been told.
    pub(crate) fn catch_up(&mut self) {
        self.catch_up_with(|_, held| !held.owed().is_empty());
    }

    /// Tells the block what it has not been told of slots that owe it more than a call's rows: that bounds what is kept.
    pub(crate) fn relieve(&mut self) {
        let most = self.context.max_rows();
        self.catch_up_with(|_, held| held.owed().len() > most);
    }

    /// The same for some slots. What fails costs drafts, and no more.
    fn catch_up_with(&mut self, which: impl Fn(u16, &Held) -> bool) {
        let slots = (0..).zip(&self.slots).filter(|&(slot, held)| which(slot, held));
        let slots: Vec<u16> = slots.map(|(slot, _)| slot).collect();
        if slots.is_empty() {
            return;
        }
        if let Err(error) = self.tell(&slots) {
            tracing::warn!("the model's own drafts begin anew: {error}");
            for &slot in &slots {
                self.start_late(Slot(slot));
            }
        }
        for &slot in &slots {
            self.slots[usize::from(slot)].trim(self.width);
        }
    }

    /// Forgets a slot's positions from `len` on.
    pub(crate) fn truncate(&mut self, slot: Slot, len: u32) {
        let held = &mut self.slots[usize::from(slot.0)];
        if len >= held.len {
            return;
        }
        let before = held.told;
        held.truncate(len, self.width);
        if held.told < before && !self.context.cut(slot, held.told) {
            self.start_late(slot);
        }
    }

    /// The block has no position more than the layers.
    fn fall_back(&mut self, slot: Slot) {
        let held = &mut self.slots[usize::from(slot.0)];
        if held.is_ahead() {
            held.fall_back();
            if !self.context.cut(slot, held.len) {
                self.start_late(slot);
            }
        }
    }

    /// Appends what a slot holds here to `bytes`; nothing if llama.cpp cannot.
    pub(crate) fn save(&mut self, slot: Slot, bytes: &mut Vec<u8>) {
        self.catch_up_with(|of, _| of == slot.0);
        let start = bytes.len();
        let held = &self.slots[usize::from(slot.0)];
        let n_rows = (held.rows.len() / self.width) as u32;
        for number in [held.len, held.first, held.tokens.len() as u32, n_rows] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(held.tokens.iter().flat_map(|token| token.0.to_le_bytes()));
        bytes.extend(held.rows.iter().flat_map(|value| value.to_le_bytes()));
        if !self.context.save(slot, bytes) {
            bytes.truncate(start);
        }
    }

    /// Makes a slot hold what [`NextN::save`] gave for `len` positions. What is not understood is as good as nothing.
    pub(crate) fn load(&mut self, slot: Slot, len: u32, bytes: &[u8]) {
        let read = read(bytes, self.width).filter(|(held, _)| held.len == len);
        let read = read.filter(|(_, state)| self.context.load(slot, state));
        let held = &mut self.slots[usize::from(slot.0)];
        if let Some((read, _)) = read {
            *held = read;
        } else {
            held.forget(len);
            self.context.cut(slot, 0);
        }
    }

    /// What the blocks expect to follow; as many answers as wishes, in order.
    ///
    /// # Errors
    /// If llama.cpp fails; what the slots hold is as before, but for what was computed beyond the wishes' positions.
    pub(crate) fn draft(&mut self, wishes: Vec<Wish>, context: u32) -> Result<Vec<Drafted>, EngineError> {
        for wish in &wishes {
            self.truncate(wish.slot, wish.position.0);
            self.fall_back(wish.slot);
        }
        let owed = |wish: &Wish| self.slots[usize::from(wish.slot.0)].owed().len() as u32;
        let n_told: Vec<u32> = wishes.iter().map(owed).collect();
        let n_rows = n_told.iter().sum::<u32>() as usize + wishes.len();
        if n_rows > self.context.max_rows() {
            self.catch_up();
        }
        let width = self.width;
        let start = |(wish, n_told): (Wish, u32)| {
            let held = &self.slots[usize::from(wish.slot.0)];
            let row = held.before(wish.position.0, width).map_or_else(|| vec![0.0; width], <[f32]>::to_vec);
            Draft { token: wish.token, row, drafted: Drafted { n_told, ..Drafted::default() }, wish }
        };
        let mut drafts: Vec<Draft> = wishes.into_iter().zip(n_told).map(start).collect();
        let mut result = Ok(());
        for step in 0.. {
            let mut under_way: Vec<&mut Draft> =
                drafts.iter_mut().filter(|draft| draft.goes_on(step, context)).collect();
            if under_way.is_empty() {
                break;
            }
            result = self.step(step, &mut under_way);
            if result.is_err() {
                break;
            }
        }
        for draft in &drafts {
            let (slot, len) = (draft.wish.slot, draft.wish.position.0);
            if !self.context.cut(slot, len) || !self.slots[usize::from(slot.0)].owed().is_empty() {
                self.start_late(slot);
            }
            self.slots[usize::from(slot.0)].trim(width);
        }
        result.map(|()| drafts.into_iter().map(|draft| draft.drafted).collect())
    }

    /// One more token for each of these. With the first ones the block is told what it is owed: one call for both.
    fn step(&mut self, step: usize, drafts: &mut [&mut Draft]) -> Result<(), EngineError> {
        let zeros = vec![0.0; self.width];
        let batch = self.context.batch();
        batch.clear();
        let mut row_of = Vec::with_capacity(drafts.len());
        let mut n_rows = 0;
        for draft in &*drafts {
            let slot = draft.wish.slot;
            let held = &self.slots[usize::from(slot.0)];
            let position = draft.wish.position.0 + step as u32;
            let owed = held.owed();
            n_rows += owed.len();
            for position in owed {
                let (token, row) = held.telling(position, &zeros);
                push(batch, slot, position, (token, row), false)?;
            }
            push(batch, slot, position, (draft.token, &draft.row), true)?;
            row_of.push(n_rows);
            n_rows += 1;
        }
        self.compute()?;
        let n_vocab = self.context.model().n_tokens();
        for (&at, draft) in row_of.iter().zip(drafts) {
            let held = &mut self.slots[usize::from(draft.wish.slot.0)];
            held.settle();
            let logits = self.context.logits(at, n_vocab);
            let logits = logits.ok_or_else(|| failed("gives no logits of the block that drafts"))?;
            let position = draft.wish.position.plus(step + 1);
            let sampled = draft.wish.sampler.sample(position, logits)?;
            let row = self.context.nextn_row(at, self.width);
            let row = row.ok_or_else(|| failed("gives no hidden rows of the block that drafts"))?;
            draft.row.copy_from_slice(row);
            draft.token = sampled.token;
            draft.drafted.tokens.push(sampled.token);
            draft.drafted.probabilities.push(sampled.logprobs.map_or(1.0, |own| own.logprob.exp().min(1.0)));
        }
        Ok(())
    }

    /// Tells the block what these slots owe, in calls as large as fit.
    fn tell(&mut self, slots: &[u16]) -> Result<(), EngineError> {
        let zeros = vec![0.0; self.width];
        let max_rows = self.context.max_rows();
        let owed = |&slot: &u16| self.slots[usize::from(slot)].owed().map(move |position| (slot, position));
        let owed: Vec<(u16, u32)> = slots.iter().flat_map(owed).collect();
        for call in owed.chunks(max_rows) {
            let batch = self.context.batch();
            batch.clear();
            for &(slot, position) in call {
                let telling = self.slots[usize::from(slot)].telling(position, &zeros);
                push(batch, Slot(slot), position, telling, false)?;
            }
            self.compute()?;
        }
        for &slot in slots {
            let held = &mut self.slots[usize::from(slot)];
            held.settle();
        }
        Ok(())
    }

    fn compute(&mut self) -> Result<(), EngineError> {
        self.context.compute().map_err(|error| match error {
            NotComputed::Cancelled => failed("has stopped"),
            NotComputed::Failed(reason) => EngineError { reason: format!("llama.cpp: {reason}") },
        })
    }

    /// The block goes on from here without what came before.
    fn start_late(&mut self, slot: Slot) {
        let held = &mut self.slots[usize::from(slot.0)];
        (held.first, held.told) = (held.len, held.len);
        held.tokens.clear();
        self.context.cut(slot, 0);
    }
}

impl Draft {
    /// Whether it wants another token; its input would be at `step` positions behind the wish's.
    fn goes_on(&self, step: usize, context: u32) -> bool {
        let Position(input) = self.wish.position.plus(step);
        step < self.wish.n_tokens && input < context
    }
}

/// What [`NextN::save`] has written of a slot, and llama.cpp's part of it; none if it is not such.
fn read(bytes: &[u8], width: usize) -> Option<(Held, &[u8])> {
    let (numbers, mut rest) = bytes.split_at_checked(4 * 4)?;
    let [len, first, n_tokens, n_rows] = <[u32; 4]>::try_from(words(numbers)?).ok()?;
    let mut take = |n: usize| {
        let (taken, behind) = rest.split_at_checked(n.checked_mul(4)?)?;
        rest = behind;
        words(taken)
    };
    let tokens = take(n_tokens as usize)?.into_iter().map(|word| Token(word.cast_signed())).collect();
    let rows: Vec<f32> =
        take((n_rows as usize).checked_mul(width)?)?.into_iter().map(f32::from_bits).collect();
    let told = first.checked_add(n_tokens)?;
    let is_such = (len..=len.checked_add(1)?).contains(&told) && n_rows <= len;
    is_such.then_some((Held { len, first, tokens, rows, told }, rest))
}

fn words(bytes: &[u8]) -> Option<Vec<u32>> {
    bytes.chunks_exact(4).map(|word| Some(u32::from_le_bytes(word.try_into().ok()?))).collect()
}

/// A row for the block: a token and the hidden row before it.
fn push(
    batch: &mut Batch,
    slot: Slot,
    position: u32,
    (token, row): (Token, &[f32]),
    output: bool,
) -> Result<(), EngineError> {
    let taken = batch.push_both(slot, position, token, row, output);
    taken.then_some(()).ok_or_else(|| failed("does not take a token and a row for the block that drafts"))
}

fn failed(what: &str) -> EngineError {
    EngineError { reason: format!("llama.cpp {what}") }
}
