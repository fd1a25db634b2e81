//! Asks llama.cpp which tensors an architecture has: the part of a toy model that cannot be written by hand.

use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;

use gguf::toy::ToyTensor;
use llama_cpp_sys_2 as sys;

use crate::{LoadError, backend};

/// Lists the tensors that llama.cpp would want beside the metadata in the file `meta`, written by
/// [`gguf::toy::Toy::write_meta`]. Builds the model in memory with zeros, so it is for tiny ones.
///
/// # Errors
/// If the file cannot be read, or llama.cpp refuses the metadata.
pub fn required_tensors(meta: &Path) -> Result<Vec<ToyTensor>, LoadError> {
    backend::init();
    let refused = || LoadError::Model { path: meta.to_path_buf(), reason: backend::take_last_error() };
    let path = CString::new(meta.as_os_str().as_encoded_bytes())
        .map_err(|_| LoadError::unsuitable(meta, "its name contains a NUL byte"))?;
    backend::clear_last_error();
    let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: `path` is NUL-terminated; with `no_alloc` and no `ctx` only the header is read.
    let header =
        NonNull::new(unsafe { sys::gguf_init_from_file(path.as_ptr(), params) }).ok_or_else(refused)?;
    let mut tensors: Vec<ToyTensor> = Vec::new();
    // SAFETY: returns a struct by value.
    let mut params = unsafe { sys::llama_model_default_params() };
    params.load_mtp = true;
    // SAFETY: `header` is live during the call and not kept by the model; `on_tensor` gets the vector below as its
    // user data, which outlives the call.
    let model = unsafe {
        sys::llama_model_init_from_user(header.as_ptr(), Some(on_tensor), (&raw mut tensors).cast(), params)
    };
    // SAFETY: `header` came from gguf_init_from_file and is freed once.
    unsafe { sys::gguf_free(header.as_ptr()) };
    let model = NonNull::new(model).ok_or_else(refused)?;
    // SAFETY: the model was just made and nothing uses it.
    unsafe { sys::llama_model_free(model.as_ptr()) };
    Ok(tensors)
}

unsafe extern "C" fn on_tensor(tensor: *mut sys::ggml_tensor, user: *mut c_void) {
    // SAFETY: `user` is the vector that `required_tensors` holds while llama.cpp builds the model.
    let tensors = unsafe { &mut *user.cast::<Vec<ToyTensor>>() };
    // SAFETY: llama.cpp passes a tensor of the model that is being built.
    let head = unsafe { &*tensor };
    // SAFETY: ggml keeps names NUL-terminated within the array.
    let name = unsafe { CStr::from_ptr(head.name.as_ptr()) };
    // Nothing here panics but an allocation that fails, which aborts; the guard keeps it so when the code changes.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let name = name.to_string_lossy();
        // A tensor that several layers use (`rope_freqs`) is passed once for each.
        if tensors.iter().all(|tensor| tensor.name != name) {
            let dims = head.ne.iter().map(|&n| u64::try_from(n).unwrap_or(0)).collect();
            tensors.push(ToyTensor { name: name.into_owned(), dims });
        }
    }));
    // SAFETY: the tensor has its buffer already; `ggml_nbytes` is its whole data.
    let bytes = unsafe { sys::ggml_nbytes(tensor) };
    // SAFETY: as above.
    unsafe { sys::ggml_backend_tensor_memset(tensor, 0, 0, bytes) };
}
