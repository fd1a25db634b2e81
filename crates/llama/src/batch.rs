//! The rows of one call, as llama.cpp wants them. Reused from call to call.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;
use protocol::Token;
use stage::Slot;

/// Owns a `llama_batch_ext`.
pub(crate) struct Batch {
    raw: NonNull<sys::llama_batch_ext>,
}

// SAFETY: a llama_batch_ext is plain data without thread affinity; it is only touched through `&mut self`.
unsafe impl Send for Batch {}

impl Batch {
    /// # Safety
    /// `ctx` is a live context.
    pub(crate) unsafe fn new(ctx: NonNull<sys::llama_context>) -> Self {
        // SAFETY: llama_batch_ext_init reads sizes from a live context (by contract) and returns a new object.
        let raw = unsafe { sys::llama_batch_ext_init(ctx.as_ptr()) };
        Self { raw: NonNull::new(raw).expect("operator new never returns null") }
    }

    pub(crate) fn raw(&mut self) -> NonNull<sys::llama_batch_ext> {
        self.raw
    }

    pub(crate) fn clear(&mut self) {
        // SAFETY: `raw` is a live batch that this value owns.
        unsafe { sys::llama_batch_ext_clear(self.raw.as_ptr()) };
    }

    /// Appends a hidden row. False if the batch is full or the row has another width than the model.
    #[must_use]
    pub(crate) fn push_row(&mut self, slot: Slot, position: u32, row: &[f32], output: bool) -> bool {
        let embd = sys::llama_embd { data: row.as_ptr(), n_rows: 1, n_embd: row.len() };
        // SAFETY: llama_batch_ext_add_embd copies `n_rows * n_embd` floats from `data`, which `row` holds.
        let index = unsafe { sys::llama_batch_ext_add_embd(self.raw.as_ptr(), i32::from(slot.0), embd) };
        self.place(index, position, output)
    }

    /// Appends a token. False if the batch is full or the token is not in the vocabulary.
    #[must_use]
    pub(crate) fn push_token(&mut self, slot: Slot, position: u32, token: Token, output: bool) -> bool {
        // SAFETY: `raw` is a live batch; the call checks slot and token and answers with a negative index if bad.
        let index = unsafe { sys::llama_batch_ext_add_token(self.raw.as_ptr(), i32::from(slot.0), token.0) };
        self.place(index, position, output)
    }

    /// Appends a token and a hidden row, for a block that drafts. False if the batch is full, the token is not in the
    /// vocabulary or the row has another width than the model.
    #[must_use]
    pub(crate) fn push_both(
        &mut self,
        slot: Slot,
        position: u32,
        token: Token,
        row: &[f32],
        output: bool,
    ) -> bool {
        // SAFETY: as in `push_token`.
        let index = unsafe { sys::llama_batch_ext_add_token(self.raw.as_ptr(), i32::from(slot.0), token.0) };
        if index < 0 {
            return false;
        }
        let embd = sys::llama_embd { data: row.as_ptr(), n_rows: 1, n_embd: row.len() };
        // SAFETY: llama_batch_ext_set_embd_token copies `n_rows * n_embd` floats from `data`, which `row` holds, for an
        // index that was just returned.
        let has_row = unsafe { sys::llama_batch_ext_set_embd_token(self.raw.as_ptr(), index, embd) };
        has_row && self.place(index, position, output)
    }

    fn place(&mut self, index: i32, position: u32, output: bool) -> bool {
        let Ok(p) = i32::try_from(position) else { return false };
        if index < 0 {
            return false;
        }
        // M-RoPE models read four positions per row (time, height, width, unused), all others the first one only.
        let positions = [p, p, p, 0];
        // SAFETY: llama_batch_ext_set_pos reads at most four positions, for an index that was just returned.
        let placed = unsafe { sys::llama_batch_ext_set_pos(self.raw.as_ptr(), index, positions.as_ptr()) };
        // SAFETY: as above; the call only sets a flag of that entry.
        placed && unsafe { sys::llama_batch_ext_set_output_logits(self.raw.as_ptr(), index, output) }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_batch_ext_init and is freed once; it keeps no reference that is used here.
        unsafe { sys::llama_batch_ext_free(self.raw.as_ptr()) };
    }
}
