//! A loaded model file: weights or, for the front, the vocabulary alone.

use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::LoadError;
use crate::backend;

/// How to load a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelOptions {
    /// Only the vocabulary, no weights.
    pub(crate) vocab_only: bool,
    /// Layers on the device; 0 keeps everything on the CPU.
    pub(crate) gpu_layers: u32,
    /// Name of the device, as ggml calls it; `None` takes all that there are.
    pub(crate) device: Option<String>,
    /// Also the model's own blocks that draft. Without them a context for them makes llama.cpp abort.
    pub(crate) drafts: bool,
    /// Forbids repacked weights, whose kernels give other last bits for other batch shapes.
    pub(crate) exact: bool,
}

/// Owns a `llama_model`. Immutable after loading.
#[derive(Debug)]
pub(crate) struct Model {
    raw: NonNull<sys::llama_model>,
}

// SAFETY: a loaded llama_model is immutable; llama.cpp shares one between contexts on several threads by design.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

type Progress<'a> = &'a mut dyn FnMut(f32);

unsafe extern "C" fn on_progress(progress: f32, user: *mut c_void) -> bool {
    // SAFETY: `user` is the `Progress` that `Model::load` holds on its stack while the load runs.
    let report = unsafe { &mut *user.cast::<Progress<'_>>() };
    // False aborts the load: a caller that panics must not unwind into C.
    catch_unwind(AssertUnwindSafe(|| report(progress))).is_ok()
}

impl Model {
    /// Loads `path`; `progress` hears numbers from 0 to 1.
    pub(crate) fn load(
        path: &Path,
        options: &ModelOptions,
        mut progress: Progress<'_>,
    ) -> Result<Self, LoadError> {
        backend::init();
        std::fs::File::open(path).map_err(|source| LoadError::io(path, source))?;
        let c_path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| LoadError::unsuitable(path, "its name contains a NUL byte"))?;
        let mut devices = chosen_devices(options)?;
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.devices = devices.as_mut().map_or(std::ptr::null_mut(), |list| list.as_mut_ptr());
        params.n_gpu_layers = i32::try_from(options.gpu_layers).unwrap_or(i32::MAX);
        params.vocab_only = options.vocab_only;
        params.load_mtp = options.drafts;
        params.use_extra_bufts = !options.exact;
        params.progress_callback = Some(on_progress);
        params.progress_callback_user_data = (&raw mut progress).cast();
        backend::clear_last_error();
        // SAFETY: `c_path` is NUL-terminated; `devices` (NULL-terminated) and `progress` outlive the call, and
        // llama.cpp keeps neither pointer after it returns.
        let raw = unsafe { sys::llama_model_load_from_file(c_path.as_ptr(), params) };
        NonNull::new(raw)
            .map(|raw| Self { raw })
            .ok_or_else(|| LoadError::Model { path: path.to_path_buf(), reason: backend::take_last_error() })
    }

    pub(crate) fn raw(&self) -> NonNull<sys::llama_model> {
        self.raw
    }

    pub(crate) fn vocab(&self) -> NonNull<sys::llama_vocab> {
        // SAFETY: the model is live; the vocabulary is part of it.
        let vocab = unsafe { sys::llama_model_get_vocab(self.raw.as_ptr()) };
        NonNull::new(vocab.cast_mut()).expect("every llama_model has a vocabulary")
    }

    /// Values in a row of `llama_embd`, the residual stream's width for every architecture that can be cut.
    pub(crate) fn row_width(&self) -> usize {
        // SAFETY: the model is live.
        let width = unsafe { sys::llama_model_n_embd_inp(self.raw.as_ptr()) };
        usize::try_from(width).unwrap_or(0)
    }

    /// Values in a row behind the last norm.
    pub(crate) fn output_width(&self) -> usize {
        // SAFETY: the model is live.
        let width = unsafe { sys::llama_model_n_embd_out(self.raw.as_ptr()) };
        usize::try_from(width).unwrap_or(0)
    }

    /// Vocabulary entries, also of a model without a tokenizer.
    pub(crate) fn n_tokens(&self) -> usize {
        // SAFETY: the vocabulary belongs to the live model.
        usize::try_from(unsafe { sys::llama_vocab_n_tokens(self.vocab().as_ptr()) }).unwrap_or(0)
    }

    /// Bytes of all tensors.
    pub(crate) fn weight_bytes(&self) -> u64 {
        // SAFETY: the model is live.
        unsafe { sys::llama_model_size(self.raw.as_ptr()) }
    }

    /// Positions that layers with a sliding window look back over; 0 if there are none.
    pub(crate) fn window(&self) -> u32 {
        // SAFETY: the model is live.
        unsafe { sys::llama_model_n_swa(self.raw.as_ptr()) }.max(0).cast_unsigned()
    }

    /// Whether a sequence's state is more than keys and values that can be cut anywhere.
    pub(crate) fn is_recurrent(&self) -> bool {
        // SAFETY: the model is live.
        let pure = unsafe { sys::llama_model_is_recurrent(self.raw.as_ptr()) };
        // SAFETY: as above.
        pure || unsafe { sys::llama_model_is_hybrid(self.raw.as_ptr()) }
    }

    /// The chat template with that name, or the default one.
    pub(crate) fn chat_template(&self, name: Option<&CStr>) -> Option<String> {
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the model is live; `name` is null or NUL-terminated.
        let text = unsafe { sys::llama_model_chat_template(self.raw.as_ptr(), name) };
        if text.is_null() {
            return None;
        }
        // SAFETY: a non-null answer is a NUL-terminated string inside the model.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `raw` came from a load and is freed once; contexts hold an `Arc` of this value, so none is alive.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) };
    }
}

/// The NULL-terminated list for `llama_model_params::devices`; `None` lets llama.cpp choose.
/// Without GPU layers the list is empty, so that no work is offloaded to a device by the way.
fn chosen_devices(options: &ModelOptions) -> Result<Option<Vec<sys::ggml_backend_dev_t>>, LoadError> {
    if options.gpu_layers == 0 {
        return Ok(Some(vec![std::ptr::null_mut()]));
    }
    let Some(name) = &options.device else { return Ok(None) };
    let unknown =
        || LoadError::Config(format!("there is no device {name}; this build knows {}", device_names()));
    let c_name = CString::new(name.as_str()).map_err(|_| unknown())?;
    // SAFETY: `c_name` is NUL-terminated; the answer is null or a device that lives as long as the process.
    let device = unsafe { sys::ggml_backend_dev_by_name(c_name.as_ptr()) };
    if device.is_null() {
        return Err(unknown());
    }
    Ok(Some(vec![device, std::ptr::null_mut()]))
}

/// Every device that ggml knows, the CPU among them: name and free bytes.
pub(crate) fn devices() -> Vec<(String, u64)> {
    // SAFETY: reads the registry, which is filled once at start.
    let n = unsafe { sys::ggml_backend_dev_count() };
    let describe = |index| {
        // SAFETY: `index` is below the count; devices live as long as the process.
        let device = unsafe { sys::ggml_backend_dev_get(index) };
        // SAFETY: the device is valid.
        let name = unsafe { sys::ggml_backend_dev_name(device) };
        // SAFETY: a device's name is NUL-terminated and static.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device and both out-pointers are valid.
        unsafe { sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total) };
        (name, free as u64)
    };
    (0..n).map(describe).collect()
}

fn device_names() -> String {
    devices().into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}
