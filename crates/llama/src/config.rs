//! What an engine is told: which file, how much of everything, and whether that can be met at all.

use std::path::PathBuf;

use protocol::KvType;

use crate::context::MAX_SLOTS;
use crate::role::Role;
use crate::{LoadError, memory};

/// States of recurrent layers that are kept beside the last one at most: one for each guess of the widest window.
const MAX_UNDO_ROWS: u32 = 15;

/// What to load and how to run it.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// A whole model, or a slice that `gguf` wrote.
    pub path: PathBuf,
    /// Positions per slot; rounded up to a multiple of 256.
    pub context: u32,
    /// Sequences at once, 1 to 256.
    pub n_slots: u16,
    /// Rows in one call at most.
    pub max_rows: u32,
    /// Threads that compute; more than free cores make it many times slower.
    pub threads: u32,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Whether a row's result must not depend on its neighbours in the call. CPU only; ARM's `i8mm` kernels, which
    /// take two rows at a time, are not covered.
    pub exact: bool,
    /// Whether layers that look back over a window only keep every position all the same, so that slots can be cut
    /// anywhere. If not they take less memory, and a slot can be cut by half a call's rows; not with `exact`.
    pub swa_full: bool,
    /// Rows of a slot's last call that can be cut off again where layers are recurrent, 0 to 15: so many states are kept
    /// besides. Attention alone can be cut anywhere without.
    pub undo_rows: u32,
    /// Whether the tail drafts with the model's own blocks for that (NextN).
    pub drafts: bool,
    /// Layers on a GPU; 0 for none.
    pub gpu_layers: u32,
    /// Which GPU, by ggml's name; `None` for all.
    pub device: Option<String>,
}

impl EngineConfig {
    /// The defaults: 4096 positions in one slot, 512 rows, one thread, half-precision memory, CPU, not exact.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            context: 4096,
            n_slots: 1,
            max_rows: 512,
            threads: 1,
            kv: KvType::F16,
            exact: false,
            swa_full: true,
            undo_rows: 0,
            drafts: false,
            gpu_layers: 0,
            device: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let in_range = |what: &str, value: u32, max: u32| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(LoadError::Config(format!("{what} must be between 1 and {max}, not {value}")))
        };
        in_range("the number of slots", u32::from(self.n_slots), u32::from(MAX_SLOTS))?;
        in_range("the context", self.context, protocol::limits::MAX_CONTEXT)?;
        in_range("rows per call", self.max_rows, protocol::limits::MAX_ROWS)?;
        in_range("threads", self.threads, 1024)?;
        if self.undo_rows > MAX_UNDO_ROWS || (self.undo_rows > 0 && self.undo_rows + 1 >= self.max_rows) {
            return Err(LoadError::Config(format!(
                "{} rows cannot be undone: at most {MAX_UNDO_ROWS}, and two fewer than a call has",
                self.undo_rows
            )));
        }
        if self.exact && self.gpu_layers > 0 {
            return Err(LoadError::Config(
                "exact arithmetic works on the CPU only: use it without GPU layers".into(),
            ));
        }
        if self.exact && !self.swa_full {
            return Err(LoadError::Config(
                "exact arithmetic needs every position of a sliding window: use it without swa_full off"
                    .into(),
            ));
        }
        Ok(())
    }

    pub(crate) fn check_memory(&self, file: &gguf::Model, role: &Role) -> Result<(), LoadError> {
        let Some(free) = memory::free_bytes(self.gpu_layers, self.device.as_deref()) else { return Ok(()) };
        let weights = memory::weight_bytes(file);
        let kv = self.kv_bytes(file, role);
        if weights.saturating_add(kv) > free {
            return Err(LoadError::Memory { path: self.path.clone(), weights, kv, free });
        }
        Ok(())
    }
}

impl EngineConfig {
    /// Bytes of keys and values, those of the block that drafts included: it is as one of the tail's layers.
    pub(crate) fn kv_bytes(&self, file: &gguf::Model, role: &Role) -> u64 {
        let layers = memory::kv_bytes(file, self.context, self.n_slots, self.kv);
        match self.drafts && role.is_tail {
            true => layers + layers.div_ceil(u64::from(file.n_layers().max(1))),
            false => layers,
        }
    }
}
