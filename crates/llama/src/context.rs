//! A model's running state: the cells of keys and values, one call at a time, and the exact switch.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use gguf::arch::Leaves;
use llama_cpp_sys_2 as sys;
use protocol::KvType;
use stage::{Cancel, Slot};

use crate::LoadError;
use crate::backend;
use crate::batch::Batch;
use crate::model::Model;
use crate::tap::{Tap, on_eval};

/// llama.cpp's own limit on sequences per context (`LLAMA_MAX_SEQ`).
pub(crate) const MAX_SLOTS: u16 = 256;
/// What `llama_process` answers when the abort callback said so.
const CANCELLED: i32 = 2;
/// llama.cpp rounds the positions per sequence up to a multiple of this.
const CONTEXT_STEP: u32 = 256;

/// How to make a context.
#[derive(Clone, Debug)]
pub(crate) struct ContextOptions {
    /// Positions per slot; rounded up, see [`Context::positions`].
    pub(crate) context: u32,
    pub(crate) n_slots: u16,
    pub(crate) max_rows: u32,
    pub(crate) threads: u32,
    pub(crate) kv: KvType,
    pub(crate) exact: bool,
    /// Whether layers with a sliding window keep every position.
    pub(crate) swa_full: bool,
    /// Rows of a call that recurrent layers can take back.
    pub(crate) undo_rows: u32,
    /// The tensor to capture on every call, if any.
    pub(crate) capture: Option<CString>,
    /// Whether every call keeps the hidden rows that the model's own blocks that draft read.
    pub(crate) keeps_nextn: bool,
}

/// Owns a `llama_context`, its batch and its tap.
pub(crate) struct Context {
    raw: NonNull<sys::llama_context>,
    batch: Batch,
    /// From `Box::into_raw`; llama.cpp holds the same pointer as user data of the callback.
    tap: Option<NonNull<Tap>>,
    max_rows: u32,
    keeps_embeddings: bool,
    /// llama.cpp looks at it while it computes, if anybody may stop a call.
    cancel: Option<Arc<Cancel>>,
    /// Declared last: the model must outlive the context.
    model: Arc<Model>,
}

// SAFETY: a llama_context has no thread affinity; it is only used through `&mut self` (reading logits apart, which
// the engine's owner does on the same thread), so one thread at a time.
unsafe impl Send for Context {}

/// Why a batch was not computed.
pub(crate) enum NotComputed {
    /// It was stopped. llama.cpp has removed what the batch had put into its memory.
    Cancelled,
    /// llama.cpp's reason.
    Failed(String),
}

/// Positions per slot that a wish of `context` gives.
pub(crate) fn padded(context: u32) -> u32 {
    context.max(1).div_ceil(CONTEXT_STEP).saturating_mul(CONTEXT_STEP)
}

impl Context {
    pub(crate) fn new(model: Arc<Model>, options: &ContextOptions, path: &Path) -> Result<Self, LoadError> {
        let context = Self::make(model, options, path, sys::LLAMA_CONTEXT_TYPE_DEFAULT)?;
        if options.keeps_nextn {
            nextn::keep(context.raw, Leaves::All)?;
        }
        Ok(context)
    }

    /// A context for the model's own blocks that draft alone; the model must have been loaded with them, else llama.cpp
    /// aborts. `leaves` must be what their graph does: it says of which rows there are hidden rows.
    pub(crate) fn drafting(
        model: Arc<Model>,
        options: &ContextOptions,
        path: &Path,
        leaves: Leaves,
    ) -> Result<Self, LoadError> {
        let context = Self::make(model, options, path, sys::LLAMA_CONTEXT_TYPE_MTP)?;
        nextn::keep(context.raw, leaves)?;
        Ok(context)
    }

    /// Which of the model's blocks that draft the next calls run, from 0; it must have so many.
    pub(crate) fn run_block(&mut self, block: usize) {
        nextn::run_block(self.raw, block as i32);
    }

    fn make(
        model: Arc<Model>,
        options: &ContextOptions,
        path: &Path,
        kind: sys::llama_context_type,
    ) -> Result<Self, LoadError> {
        let tap = options.capture.clone().map(|name| {
            let tap = Box::new(Tap::new(name, model.row_width()));
            NonNull::new(Box::into_raw(tap)).expect("a box is never null")
        });
        let mut params = parameters(options);
        params.ctx_type = kind;
        if model.is_recurrent() {
            params.n_rs_seq = options.undo_rows;
        }
        if let Some(tap) = tap {
            params.cb_eval = Some(on_eval);
            params.cb_eval_user_data = tap.as_ptr().cast();
        }
        backend::clear_last_error();
        // SAFETY: the model is live; the tap's box outlives the context (freed after it, in `drop` or below).
        let raw = unsafe { sys::llama_init_from_model(model.raw().as_ptr(), params) };
        let Some(raw) = NonNull::new(raw) else {
            free_tap(tap);
            return Err(LoadError::Context { path: path.to_path_buf(), reason: backend::take_last_error() });
        };
        // SAFETY: `raw` is the live context just made.
        let batch = unsafe { Batch::new(raw) };
        let context = Self {
            raw,
            batch,
            tap,
            max_rows: options.max_rows,
            keeps_embeddings: false,
            cancel: None,
            model,
        };
        if options.exact {
            context.use_reference_kernels()?;
        }
        Ok(context)
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Positions per slot.
    pub(crate) fn positions(&self) -> u32 {
        // SAFETY: the context is live.
        unsafe { sys::llama_n_ctx_seq(self.raw.as_ptr()) }
    }

    /// Rows in one call at most; all of them make one pass over the weights.
    pub(crate) fn max_rows(&self) -> usize {
        // SAFETY: the context is live.
        unsafe { sys::llama_n_ubatch(self.raw.as_ptr()) }.min(self.max_rows) as usize
    }

    /// Rows that a recurrent sequence can be cut back by.
    pub(crate) fn rollback_rows(&self) -> u32 {
        // SAFETY: the context is live.
        unsafe { sys::llama_n_rs_seq(self.raw.as_ptr()) }
    }

    /// The rows of the next [`Context::compute`].
    pub(crate) fn batch(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// The tap, between calls.
    pub(crate) fn tap(&mut self) -> Option<&mut Tap> {
        // SAFETY: the box is live until `drop`, and llama.cpp touches it only inside llama_process, which needs
        // `&mut self` as this borrow does.
        self.tap.map(|tap| unsafe { &mut *tap.as_ptr() })
    }

    /// Has llama.cpp look at `cancel` between the operators of a graph; back ends other than the CPU's and Metal's do not.
    pub(crate) fn heed(&mut self, cancel: Cancel) {
        let cancel = self.cancel.insert(Arc::new(cancel));
        let data = Arc::as_ptr(cancel).cast_mut().cast();
        // SAFETY: the context is live and idle; `data` is what `is_cancelled` takes it for and lives until the context is
        // freed or is given another one here.
        unsafe { sys::llama_set_abort_callback(self.raw.as_ptr(), Some(is_cancelled), data) };
    }

    /// Computes the batch and waits for it.
    ///
    /// # Errors
    /// If it was stopped or llama.cpp failed.
    pub(crate) fn compute(&mut self) -> Result<(), NotComputed> {
        backend::clear_last_error();
        backend::hold_log();
        let batch = self.batch.raw();
        // SAFETY: context and batch are live and belong to each other; the batch was filled through checked calls.
        let status =
            unsafe { sys::llama_process(self.raw.as_ptr(), sys::LLAMA_PROCESS_TYPE_DECODE, batch.as_ptr()) };
        // SAFETY: the context is live. On a GPU the work may still run; afterwards outputs are complete.
        unsafe { sys::llama_synchronize(self.raw.as_ptr()) };
        backend::release_log(status == CANCELLED);
        match status {
            0 => Ok(()),
            1 => Err(NotComputed::Failed(
                "no room for these positions in the memory of keys and values".to_owned(),
            )),
            CANCELLED => Err(NotComputed::Cancelled),
            _ => Err(NotComputed::Failed(backend::take_last_error())),
        }
    }

    /// The logits of a row of the last batch that was flagged as output.
    pub(crate) fn logits(&self, row: usize, n_vocab: usize) -> Option<&[f32]> {
        let row = i32::try_from(row).ok()?;
        // SAFETY: the context is live and idle; an index without output is answered with null.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), row) };
        if logits.is_null() {
            return None;
        }
        // SAFETY: a non-null answer points to `n_vocab` floats that stay unchanged until the next call that
        // computes, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(logits, n_vocab) })
    }

    /// Whether the following calls keep what the model's last norm makes of their rows. All rows must be flagged as
    /// outputs then. It costs the output head for each of them, so it is off unless somebody asks.
    pub(crate) fn set_embeddings(&mut self, keep: bool) {
        if keep != self.keeps_embeddings {
            // SAFETY: the context is live and idle; the call sets a flag that the next one reads.
            unsafe { sys::llama_set_embeddings(self.raw.as_ptr(), keep) };
            self.keeps_embeddings = keep;
        }
    }

    /// What the model's last norm made of a row of the last batch; none unless that was to be kept.
    pub(crate) fn embedding(&self, row: usize) -> Option<&[f32]> {
        let row = i32::try_from(row).ok().filter(|_| self.keeps_embeddings)?;
        // SAFETY: the context is live and idle; an index without output is answered with null.
        let values = unsafe { sys::llama_get_embeddings_ith(self.raw.as_ptr(), row) };
        if values.is_null() {
            return None;
        }
        // SAFETY: without pooling, which the context's parameters rule out, a non-null answer points to as many floats as
        // the model puts out per row; they stay unchanged until the next call that computes, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(values, self.model.output_width()) })
    }

    /// What the last batch has left for the model's own blocks that draft: `n_rows` rows of `width` values in its order.
    /// None unless the context keeps them.
    pub(crate) fn nextn_rows(&self, n_rows: usize, width: usize) -> Option<&[f32]> {
        let rows = nextn::rows(self.raw)?;
        // SAFETY: unmasked, which this context is, there is a row for each of the last batch's; they stay unchanged until
        // the next call that computes, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(rows.as_ptr(), n_rows * width) })
    }

    /// What a block that drafts has left for the next step, of a row of the last batch that was flagged as output.
    pub(crate) fn nextn_row(&self, row: usize, width: usize) -> Option<&[f32]> {
        let row = nextn::row(self.raw, i32::try_from(row).ok()?)?;
        // SAFETY: a non-null answer points to a row's values, which stay unchanged until the next call that computes, and
        // that needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(row.as_ptr(), width) })
    }

    /// Removes a slot's positions from `len` on. False if the memory cannot be cut there.
    pub(crate) fn cut(&mut self, slot: Slot, len: u32) -> bool {
        let Ok(len) = i32::try_from(len) else { return false };
        // SAFETY: the context is live.
        let memory = unsafe { sys::llama_get_memory(self.raw.as_ptr()) };
        // SAFETY: `memory` belongs to the live context; slot numbers were checked against n_seq_max.
        unsafe { sys::llama_memory_seq_rm(memory, i32::from(slot.0), len, -1) }
    }

    /// Whether a slot still holds what a row at `position` looks back to, the window of sliding layers included.
    pub(crate) fn remembers(&self, slot: Slot, position: u32) -> bool {
        // SAFETY: the context is live.
        let memory = unsafe { sys::llama_get_memory(self.raw.as_ptr()) };
        // SAFETY: `memory` belongs to the live context; slot numbers were checked against n_seq_max.
        let oldest = unsafe { sys::llama_memory_seq_pos_min(memory, i32::from(slot.0)) };
        i64::from(oldest) <= i64::from(position.saturating_sub(self.model.window()))
    }

    /// Appends a slot's positions to `bytes`. False if llama.cpp cannot.
    pub(crate) fn save(&mut self, slot: Slot, bytes: &mut Vec<u8>) -> bool {
        let seq = i32::from(slot.0);
        // SAFETY: the context is live and idle.
        let size = unsafe { sys::llama_state_seq_get_size(self.raw.as_ptr(), seq) };
        let start = bytes.len();
        bytes.resize(start + size, 0);
        // SAFETY: the context is live and idle; `size` bytes from `start` on belong to `bytes`.
        let written = unsafe {
            sys::llama_state_seq_get_data(self.raw.as_ptr(), bytes[start..].as_mut_ptr(), size, seq)
        };
        size > 0 && written == size
    }

    /// Makes a slot hold what [`Context::save`] gave, and nothing else. False if llama.cpp refuses the bytes.
    pub(crate) fn load(&mut self, slot: Slot, bytes: &[u8]) -> bool {
        let seq = i32::from(slot.0);
        // SAFETY: the context is live and idle; the call reads at most `bytes.len()` bytes and checks what they say.
        let read =
            unsafe { sys::llama_state_seq_set_data(self.raw.as_ptr(), bytes.as_ptr(), bytes.len(), seq) };
        read == bytes.len()
    }

    /// Makes every CPU kernel the plain one, whose result for a row does not depend on its neighbours.
    fn use_reference_kernels(&self) -> Result<(), LoadError> {
        let sched = scheduler_of(self.raw)?;
        // SAFETY: the scheduler belongs to the live context.
        let n = unsafe { sys::ggml_backend_sched_get_n_backends(sched) };
        for index in 0..n {
            // SAFETY: `index` is below the count.
            let backend = unsafe { sys::ggml_backend_sched_get_backend(sched, index) };
            // SAFETY: `backend` is live; the call only compares its identity.
            if unsafe { sys::ggml_backend_is_cpu(backend) } {
                // SAFETY: the call needs a CPU back end, which was just checked.
                unsafe { sys::ggml_backend_cpu_set_use_ref(backend, true) };
                return Ok(());
            }
        }
        Err(LoadError::Config(
            "exact arithmetic needs the CPU back end, and this context has none".to_owned(),
        ))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_init_from_model and is freed once, before the model.
        unsafe { sys::llama_free(self.raw.as_ptr()) };
        free_tap(self.tap.take());
    }
}

unsafe extern "C" fn is_cancelled(data: *mut c_void) -> bool {
    // SAFETY: `data` is the `Cancel` that `Context::heed` registered, which outlives every call; it is only ever shared.
    unsafe { &*data.cast::<Cancel>() }.is_raised()
}

fn free_tap(tap: Option<NonNull<Tap>>) {
    if let Some(tap) = tap {
        // SAFETY: the pointer came from `Box::into_raw` and the context that knew it is gone (or was never made).
        drop(unsafe { Box::from_raw(tap.as_ptr()) });
    }
}

fn parameters(options: &ContextOptions) -> sys::llama_context_params {
    // SAFETY: returns a struct by value.
    let mut params = unsafe { sys::llama_context_default_params() };
    let kv = match options.kv {
        KvType::F16 => sys::GGML_TYPE_F16,
        KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        KvType::Q4_0 => sys::GGML_TYPE_Q4_0,
    };
    let threads = i32::try_from(options.threads).unwrap_or(i32::MAX);
    params.n_ctx = padded(options.context).saturating_mul(u32::from(options.n_slots));
    params.n_seq_max = u32::from(options.n_slots);
    // llama.cpp plans for a row of every slot at once and aborts if a call could not hold them.
    params.n_batch = options.max_rows.max(u32::from(options.n_slots));
    params.n_ubatch = params.n_batch;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.type_k = kv;
    params.type_v = kv;
    params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_AUTO;
    // One stream per slot, and, unless `swa_full` is off, windows that can always be rewound (ARCHITECTURE.md, "KV layout").
    params.kv_unified = false;
    params.swa_full = options.swa_full;
    // Prompts go through in pieces that llama.cpp could not pool: the stage does it.
    params.pooling_type = sys::LLAMA_POOLING_TYPE_NONE;
    params.no_perf = true;
    params
}

/// llama.cpp has no C function for a context's scheduler; the C++ method is exported and has this name on Linux
/// and macOS (Itanium ABI).
#[cfg(unix)]
fn scheduler_of(ctx: NonNull<sys::llama_context>) -> Result<sys::ggml_backend_sched_t, LoadError> {
    unsafe extern "C" {
        #[link_name = "_ZNK13llama_context9get_schedEv"]
        fn get_sched(ctx: *const sys::llama_context) -> sys::ggml_backend_sched_t;
    }
    // SAFETY: `llama_context::get_sched() const` takes only `this`, a live context, and returns a pointer that the
    // context owns.
    let sched = unsafe { get_sched(ctx.as_ptr()) };
    if sched.is_null() {
        return Err(LoadError::Config(
            "exact arithmetic is not available: the context has no scheduler".to_owned(),
        ));
    }
    Ok(sched)
}

#[cfg(not(unix))]
fn scheduler_of(_ctx: NonNull<sys::llama_context>) -> Result<sys::ggml_backend_sched_t, LoadError> {
    Err(LoadError::Config("exact arithmetic is only available on Linux and macOS".to_owned()))
}

/// What llama.cpp declares in C++ for blocks that draft; the functions are exported and have these names on Linux and macOS
/// (Itanium ABI).
#[cfg(unix)]
mod nextn {
    use std::ptr::NonNull;

    use gguf::arch::Leaves;
    use llama_cpp_sys_2 as sys;

    use crate::LoadError;

    unsafe extern "C" {
        #[link_name = "_Z26llama_set_embeddings_nextnP13llama_contextbb"]
        fn set_nextn(ctx: *mut sys::llama_context, value: bool, masked: bool);
        #[link_name = "_Z26llama_get_embeddings_nextnP13llama_context"]
        fn get_nextn(ctx: *mut sys::llama_context) -> *mut f32;
        #[link_name = "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"]
        fn get_nextn_ith(ctx: *mut sys::llama_context, row: i32) -> *mut f32;
        #[link_name = "_Z28llama_set_nextn_layer_offsetP13llama_contexti"]
        fn set_nextn_layer_offset(ctx: *mut sys::llama_context, offset: i32);
    }

    /// Has a context keep the hidden rows of the rows whose graph leaves some. ("Masked", of outputs only, they would be the
    /// wrong ones of a graph that leaves all, wherever some rows of a call are no outputs; and of a graph that leaves outputs
    /// only, llama.cpp would read behind the end of them unless they are masked.)
    pub(super) fn keep(ctx: NonNull<sys::llama_context>, leaves: Leaves) -> Result<(), LoadError> {
        // SAFETY: the context is live and idle; the call sets flags that the next one reads.
        unsafe { set_nextn(ctx.as_ptr(), true, leaves == Leaves::Outputs) };
        Ok(())
    }

    pub(super) fn run_block(ctx: NonNull<sys::llama_context>, block: i32) {
        // SAFETY: the context is live and idle; the call sets a number that the next one reads.
        unsafe { set_nextn_layer_offset(ctx.as_ptr(), block) };
    }

    pub(super) fn rows(ctx: NonNull<sys::llama_context>) -> Option<NonNull<f32>> {
        // SAFETY: the context is live and idle; without kept rows the answer is null.
        NonNull::new(unsafe { get_nextn(ctx.as_ptr()) })
    }

    pub(super) fn row(ctx: NonNull<sys::llama_context>, row: i32) -> Option<NonNull<f32>> {
        // SAFETY: the context is live and idle; a row that is none is answered with null.
        NonNull::new(unsafe { get_nextn_ith(ctx.as_ptr(), row) })
    }
}

#[cfg(not(unix))]
mod nextn {
    use std::ptr::NonNull;

    use gguf::arch::Leaves;
    use llama_cpp_sys_2 as sys;

    use crate::LoadError;

    pub(super) fn keep(_ctx: NonNull<sys::llama_context>, _leaves: Leaves) -> Result<(), LoadError> {
        Err(LoadError::Config("a model's own drafts are only available on Linux and macOS".to_owned()))
    }

    pub(super) fn run_block(_ctx: NonNull<sys::llama_context>, _block: i32) {}

    pub(super) fn rows(_ctx: NonNull<sys::llama_context>) -> Option<NonNull<f32>> {
        None
    }

    pub(super) fn row(_ctx: NonNull<sys::llama_context>, _row: i32) -> Option<NonNull<f32>> {
        None
    }
}

/// Bytes of a tensor's name with its final zero (`GGML_MAX_NAME`).
const MAX_NAME: usize = 64;

/// A tensor name as C wants it.
pub(crate) fn tensor_name(name: &str) -> Option<CString> {
    // ggml cuts longer names, so they could never match.
    (name.len() < MAX_NAME).then(|| CString::new(name).ok()).flatten()
}

/// For messages.
pub(crate) fn shown(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}
