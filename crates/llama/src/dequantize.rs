//! Tensor data to floats, by ggml's own conversion, so that a row looked up outside equals llama.cpp's.

use gguf::TensorType;
use llama_cpp_sys_2 as sys;

/// Appends the floats of whole blocks of `ty` to `out`; `bytes` must hold `n` elements exactly.
///
/// # Errors
/// If ggml cannot convert the type, or the sizes do not match.
pub(crate) fn append(ty: TensorType, bytes: &[u8], n: usize, out: &mut Vec<f32>) -> Result<(), String> {
    if ty.row_bytes(n as u64) != Some(bytes.len() as u64) {
        return Err(format!("{} bytes are not {n} elements of {ty}", bytes.len()));
    }
    if ty == TensorType::F32 {
        out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        return Ok(());
    }
    // SAFETY: `TensorType` only has numbers that are a `ggml_type` of the pinned version; the table is static.
    let traits = unsafe { &*sys::ggml_get_type_traits(ty.id()) };
    let to_float = traits.to_float.ok_or_else(|| format!("{ty} cannot be converted to floats"))?;
    let n_values = i64::try_from(n).map_err(|_| format!("{n} elements are too many"))?;
    let start = out.len();
    out.resize(start + n, 0.0);
    // SAFETY: `to_float` reads the blocks of `n` elements at `bytes` (whose length was checked above) and writes `n`
    // floats, for which `out` has room. ggml's block types have no alignment beyond 2, which vectors of bytes from
    // the allocator exceed.
    unsafe { to_float(bytes.as_ptr().cast(), out[start..].as_mut_ptr(), n_values) };
    Ok(())
}
