//! The model's own blocks that draft (*NextN*), beside the layers of a tail: a second context of llama.cpp.
//!
//! Such a block reads a token and the hidden row that the layers have given for the token *before* it; it has keys and
//! values of its own. So it has to be told every token that the layers compute, each with the row of its predecessor.
//! Owns: that these rows reach it, shifted by one, across calls, cuts, saved slots and guesses that were wrong; and
//! drafting, several sequences in one call.
//!
//! A block that is alone drafts token after token from its own rows. Of several, a *chain*, each drafts one token: the
//! second one reads what the first one has read and drafted, with the row that the first one gave, and so on. Each has to be
//! told every token, but llama.cpp's memory knows positions only, and not which block has written there. So whenever
//! another block is run on a slot, its positions are cut back to what that block has been told, and given again from
//! there. They come to stand in the same cells (a slot's positions are without a gap, and none of them is forgotten), where
//! the other blocks' keys and values still are.
//!
//! Nothing here may disturb decoding: what the block is told is told late, when a draft is wanted, in the call of its first
//! token, or when nothing else is to be done. While nobody wants drafts that is a call for many tokens, which costs next to
//! nothing for each. A slot whose rows are lost goes on with an empty memory, as at the beginning of a text.
//!
//! Of a prefix that is cut where the row before the cut is not kept any more, the block keeps one position more than the
//! layers: if the same token comes there again, what the block has of it is right, and the layers give its row anew. So
//! whoever wants good drafts behind a prefix lets the layers compute its last token again.

use std::ops::Range;
use std::sync::Arc;

use protocol::{Position, Token};
use stage::{Drafted, EngineError, Slot, Span, Wish};

use crate::LoadError;
use crate::batch::Batch;
use crate::context::{Context, ContextOptions, NotComputed};
use crate::model::Model;
use crate::role::Drafting;

/// Hidden rows that are kept of each slot: so far back it can be cut without losing the row before the cut. Guesses that
/// were wrong are fewer, since the last stage computes no second window before the first one is judged.
const KEPT: usize = 64;

/// See the module.
pub(crate) struct NextN {
    context: Context,
    n_blocks: usize,
    /// Values in a hidden row.
    width: usize,
    slots: Vec<Held>,
}

/// What is known of a slot.
#[derive(Clone, Debug)]
struct Held {
    /// Positions that the layers have computed.
    len: u32,
    /// Position of the first of `tokens`.
    first: u32,
    /// All tokens that some block has been told, or all will be.
    tokens: Vec<Token>,
    /// The layers' last hidden rows, those below `len`, row-major.
    rows: Vec<f32>,
    /// Positions of which each block has keys and values in its memory, or which it has given up: `len` at most, but for
    /// one more behind a cut.
    told: Vec<u32>,
}

impl Held {
    /// As at the beginning of a text that has `len` positions nobody knows.
    fn late(len: u32, n_blocks: usize) -> Self {
        Self { len, first: len, tokens: Vec::new(), rows: Vec::new(), told: vec![len; n_blocks] }
    }

    fn forget(&mut self, len: u32) {
        *self = Self::late(len, self.told.len());
    }

    /// Positions that some block has.
    fn end(&self) -> u32 {
        self.told.iter().copied().max().unwrap_or(0)
    }

    /// The token at a position.
    fn token(&self, position: u32) -> Option<Token> {
        self.tokens.get(position.checked_sub(self.first)? as usize).copied()
    }

    /// Cuts what the layers have computed, and one position further back what the blocks have if the row before the cut is
    /// lost. Their memory has to be cut to [`Held::end`] if that has changed.
    fn truncate(&mut self, len: u32, width: usize) {
        let n_lost = (self.len - len) as usize * width;
        self.rows.truncate(self.rows.len().saturating_sub(n_lost));
        self.len = len;
        let keeps_one = len > 0 && self.token(len).is_some() && self.rows.is_empty();
        self.cut_told(len + u32::from(keeps_one));
        self.tokens.truncate(self.end().max(len).saturating_sub(self.first) as usize);
        self.first = self.first.min(len);
    }

    fn cut_told(&mut self, len: u32) {
        self.told.iter_mut().for_each(|told| *told = len.min(*told));
    }

    /// Whether a block has the position behind those that the layers have.
    fn is_ahead(&self) -> bool {
        self.end() > self.len
    }

    /// Gives up the position that blocks have more than the layers.
    fn fall_back(&mut self) {
        self.tokens.truncate((self.len - self.first) as usize);
        self.cut_told(self.len);
    }

    /// The layers have computed these.
    fn extend(&mut self, tokens: &[Token], rows: &[f32]) {
        let end = self.first + self.tokens.len() as u32;
        let n_known = (end.saturating_sub(self.len) as usize).min(tokens.len());
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

    /// Positions that a block has not been told.
    fn owed(&self, block: usize) -> Range<u32> {
        self.told[block]..self.len
    }

    /// Positions that the block has not been told which knows least.
    fn most_owed(&self) -> usize {
        self.told.iter().map(|&told| (told..self.len).len()).max().unwrap_or(0)
    }

    /// What a block is told of a position that it is owed: the token there, and the row before it.
    fn telling<'a>(&'a self, position: u32, zeros: &'a [f32]) -> (Token, &'a [f32]) {
        let token = self.tokens[(position - self.first) as usize];
        (token, self.before(position, zeros.len()).unwrap_or(zeros))
    }

    /// A block has been told all, and the memory has no position more.
    fn settle(&mut self, block: usize) {
        self.cut_told(self.len);
        self.told[block] = self.len;
    }

    /// Drops the oldest rows but for [`KEPT`] and those that have not been told.
    fn trim(&mut self, width: usize) {
        let kept = KEPT.max(self.most_owed() + 1);
        let n = self.rows.len().saturating_sub(kept * width);
        self.rows.drain(..n);
    }
}

/// One sequence while it is drafted.
struct Draft {
    wish: Wish,
    drafted: Drafted,
    /// The inputs so far, from the wish's token on, and the row before each, row-major.
    inputs: Vec<Token>,
    rows: Vec<f32>,
}

impl NextN {
    /// A context for the blocks in `model`, which was loaded with them. `options` are those of the layers' context.
    pub(crate) fn new(
        model: Arc<Model>,
        options: &ContextOptions,
        drafting: &Drafting,
    ) -> Result<Self, LoadError> {
        let (width, n_blocks, n_slots) =
            (model.output_width(), drafting.n_blocks, usize::from(options.n_slots));
        // The last one of a chain is given as many rows of every slot at once.
        let least = u32::try_from(n_slots * n_blocks).unwrap_or(u32::MAX);
        let options = ContextOptions {
            undo_rows: 0,
            capture: None,
            max_rows: options.max_rows.max(least),
            // Where positions are forgotten, their cells are used again, and the blocks of a chain would lose each other's.
            swa_full: true,
            ..options.clone()
        };
        let context = Context::drafting(model, &options, &drafting.path, drafting.leaves)?;
        Ok(Self { context, n_blocks, width, slots: vec![Held::late(0, n_blocks); n_slots] })
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

    /// Tells the blocks whatever they have not been told.
    pub(crate) fn catch_up(&mut self) {
        self.catch_up_with(|_, held| held.most_owed() > 0);
    }

    /// Tells the blocks what they have not been told of slots that owe one more than a call's rows: that bounds what is kept.
    pub(crate) fn relieve(&mut self) {
        let most = self.context.max_rows();
        self.catch_up_with(|_, held| held.most_owed() > most);
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
        let before = held.end();
        held.truncate(len, self.width);
        let end = held.end();
        if end < before && !self.context.cut(slot, end) {
            self.start_late(slot);
        }
    }

    /// The blocks have no position more than the layers.
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
        let held = &self.slots[usize::from(slot.0)];
        if held.told.iter().any(|&told| told != held.end()) {
            self.fall_back(slot);
        }
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
        let read = read(bytes, self.width, self.n_blocks).filter(|(held, _)| held.len == len);
        let read = read.filter(|(_, state)| self.context.load(slot, state));
        let held = &mut self.slots[usize::from(slot.0)];
        if let Some((read, _)) = read {
            *held = read;
        } else {
            held.forget(len);
            self.context.cut(slot, 0);
        }
    }

    /// What the blocks expect to follow; as many answers as wishes, in order. A chain drafts a token for each block at most.
    ///
    /// # Errors
    /// If llama.cpp fails; the blocks go on with the wishes' slots as if these began there.
    pub(crate) fn draft(&mut self, wishes: Vec<Wish>, context: u32) -> Result<Vec<Drafted>, EngineError> {
        for wish in &wishes {
            self.truncate(wish.slot, wish.position.0);
            self.fall_back(wish.slot);
        }
        let owed = |wish: &Wish, block: usize| self.slots[usize::from(wish.slot.0)].owed(block).len();
        let mut n_told = vec![0; wishes.len()];
        let n_rows = |block: usize| wishes.iter().map(|wish| owed(wish, block) + block + 1).sum::<usize>();
        if (0..self.n_blocks).any(|block| n_rows(block) > self.context.max_rows()) {
            let of_all = |wish: &Wish| (0..self.n_blocks).map(|block| owed(wish, block) as u32).sum();
            n_told = wishes.iter().map(of_all).collect();
            self.catch_up();
        }
        let width = self.width;
        let start = |(wish, n_told): (Wish, u32)| {
            let held = &self.slots[usize::from(wish.slot.0)];
            let rows = held.before(wish.position.0, width).map_or_else(|| vec![0.0; width], <[f32]>::to_vec);
            Draft { inputs: vec![wish.token], rows, drafted: Drafted { n_told, ..Drafted::default() }, wish }
        };
        let mut drafts: Vec<Draft> = wishes.into_iter().zip(n_told).map(start).collect();
        let mut result = Ok(());
        for step in 0..if self.n_blocks > 1 { self.n_blocks } else { usize::MAX } {
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
            if !self.context.cut(slot, len) || result.is_err() {
                self.start_late(slot);
            }
            self.slots[usize::from(slot.0)].trim(width);
        }
        result.map(|()| drafts.into_iter().map(|draft| draft.drafted).collect())
    }

    /// One more token for each of these. A block is told what it is owed with its first one: one call for both.
    fn step(&mut self, step: usize, drafts: &mut [&mut Draft]) -> Result<(), EngineError> {
        let zeros = vec![0.0; self.width];
        let block = step.min(self.n_blocks - 1);
        let is_first = step == block;
        if is_first {
            for draft in &*drafts {
                self.go_back(draft.wish.slot, block)?;
            }
        }
        let batch = self.context.batch();
        batch.clear();
        let mut row_of = Vec::with_capacity(drafts.len());
        let mut n_rows = 0;
        for draft in &mut *drafts {
            let slot = draft.wish.slot;
            let held = &self.slots[usize::from(slot.0)];
            let owed = held.owed(block);
            let from = if is_first { 0 } else { step };
            draft.drafted.n_told += (owed.len() + step - from) as u32;
            n_rows += owed.len();
            for position in owed {
                let telling = held.telling(position, &zeros);
                push(batch, slot, position, telling, false)?;
            }
            for at in from..=step {
                let input = (draft.inputs[at], &draft.rows[at * self.width..(at + 1) * self.width]);
                push(batch, slot, draft.wish.position.0 + at as u32, input, at == step)?;
                n_rows += 1;
            }
            row_of.push(n_rows - 1);
        }
        self.compute(block)?;
        let n_vocab = self.context.model().n_tokens();
        for (&at, draft) in row_of.iter().zip(drafts) {
            self.slots[usize::from(draft.wish.slot.0)].settle(block);
            let logits = self.context.logits(at, n_vocab);
            let logits = logits.ok_or_else(|| failed("gives no logits of the block that drafts"))?;
            let position = draft.wish.position.plus(step + 1);
            let sampled = draft.wish.sampler.sample(position, logits)?;
            let row = self.context.nextn_row(at, self.width);
            let row = row.ok_or_else(|| failed("gives no hidden rows of the block that drafts"))?;
            draft.rows.extend_from_slice(row);
            draft.inputs.push(sampled.token);
            draft.drafted.tokens.push(sampled.token);
            draft.drafted.probabilities.push(sampled.logprobs.map_or(1.0, |own| own.logprob.exp().min(1.0)));
        }
        Ok(())
    }

    /// Makes the memory end where a block's own knowledge of a slot does, so that the block can be told from there on.
    fn go_back(&mut self, slot: Slot, block: usize) -> Result<(), EngineError> {
        let told = self.slots[usize::from(slot.0)].told[block];
        let can = self.context.cut(slot, told);
        can.then_some(()).ok_or_else(|| failed("does not cut the memory of the blocks that draft"))
    }

    /// Tells the blocks what these slots owe, in calls as large as fit.
    fn tell(&mut self, slots: &[u16]) -> Result<(), EngineError> {
        let zeros = vec![0.0; self.width];
        let max_rows = self.context.max_rows();
        for block in 0..self.n_blocks {
            let owing = |slot: &u16| !self.slots[usize::from(*slot)].owed(block).is_empty();
            let owing: Vec<u16> = slots.iter().copied().filter(owing).collect();
            for &slot in &owing {
                self.go_back(Slot(slot), block)?;
            }
            let owed =
                |&slot: &u16| self.slots[usize::from(slot)].owed(block).map(move |position| (slot, position));
            let owed: Vec<(u16, u32)> = owing.iter().flat_map(owed).collect();
            for call in owed.chunks(max_rows) {
                let batch = self.context.batch();
                batch.clear();
                for &(slot, position) in call {
                    let telling = self.slots[usize::from(slot)].telling(position, &zeros);
                    push(batch, Slot(slot), position, telling, false)?;
                }
                self.compute(block)?;
            }
            for &slot in &owing {
                self.slots[usize::from(slot)].settle(block);
            }
        }
        Ok(())
    }

    fn compute(&mut self, block: usize) -> Result<(), EngineError> {
        self.context.run_block(block);
        self.context.compute().map_err(|error| match error {
            NotComputed::Cancelled => failed("has stopped"),
            NotComputed::Failed(reason) => EngineError { reason: format!("llama.cpp: {reason}") },
        })
    }

    /// The blocks go on from here without what came before.
    fn start_late(&mut self, slot: Slot) {
        let held = &mut self.slots[usize::from(slot.0)];
        held.first = held.len;
        held.told.fill(held.len);
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
fn read(bytes: &[u8], width: usize, n_blocks: usize) -> Option<(Held, &[u8])> {
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
    is_such.then(|| (Held { len, first, tokens, rows, told: vec![told; n_blocks] }, rest))
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
