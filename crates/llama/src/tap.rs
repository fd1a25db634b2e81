//! Captures one tensor of the graph while it is computed: the hidden rows that leave a stage.
//!
//! Owns the callback that llama.cpp's scheduler calls for every node. It asks for the one tensor by name and copies
//! its rows, in the order of the micro-batch, straight into the caller's vector.

use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use llama_cpp_sys_2 as sys;

/// What the callback reads and writes. Its address is given to llama.cpp, so it lives in a box that outlives the
/// context.
pub(crate) struct Tap {
    name: CString,
    width: usize,
    /// Rows captured so far, row-major.
    pub(crate) rows: Vec<f32>,
    /// Why a tensor of the right name was not what was expected.
    pub(crate) fault: Option<String>,
}

impl Tap {
    pub(crate) fn new(name: CString, width: usize) -> Self {
        Self { name, width, rows: Vec::new(), fault: None }
    }

    /// Captures another tensor from now on; returns the old name.
    pub(crate) fn rename(&mut self, name: CString) -> CString {
        std::mem::replace(&mut self.name, name)
    }

    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    fn copy(&mut self, tensor: *mut sys::ggml_tensor) {
        // SAFETY: the scheduler passes a tensor of its graph that is valid for the duration of the callback.
        let head = unsafe { &*tensor };
        let row_bytes = self.width * size_of::<f32>();
        let is_rows = head.type_ == sys::GGML_TYPE_F32
            && usize::try_from(head.ne[0]) == Ok(self.width)
            && head.nb[1] == row_bytes
            && head.ne[2] == 1
            && head.ne[3] == 1;
        let (Ok(n_rows), true) = (usize::try_from(head.ne[1]), is_rows) else {
            self.fault = Some(format!("has type {} and shape {:?}", head.type_, head.ne));
            return;
        };
        let n_values = n_rows * self.width;
        self.rows.reserve(n_values);
        let room = self.rows.spare_capacity_mut();
        // SAFETY: ggml_backend_tensor_get copies `n_values * 4` bytes from offset 0 of a computed tensor that holds
        // exactly that many contiguous floats (checked above) to a buffer with room for them (reserved above).
        unsafe { sys::ggml_backend_tensor_get(tensor, room.as_mut_ptr().cast(), 0, n_rows * row_bytes) };
        // SAFETY: the `n_values` elements after the old length were written by the call above.
        unsafe { self.rows.set_len(self.rows.len() + n_values) };
    }
}

/// For `llama_context_params::cb_eval`, with a `*mut Tap` as user data.
///
/// # Safety
/// `user` points to a `Tap` that nothing else accesses during the call; `tensor` is a tensor of the running graph.
pub(crate) unsafe extern "C" fn on_eval(tensor: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: by contract, `user` is the tap that was registered with this callback, and the thread inside
    // llama_process is the only one that touches it now.
    let tap = unsafe { &mut *user.cast::<Tap>() };
    // SAFETY: by contract, `tensor` is valid; ggml keeps its name NUL-terminated within the array.
    let name = unsafe { CStr::from_ptr((&raw const (*tensor).name).cast()) };
    if name != tap.name() {
        return !ask;
    }
    if !ask && catch_unwind(AssertUnwindSafe(|| tap.copy(tensor))).is_err() {
        tap.fault = Some("could not be copied".to_owned());
    }
    true
}
