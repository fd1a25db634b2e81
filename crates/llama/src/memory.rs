//! What a file will take in memory, and what is free: asked before anything is loaded.

use gguf::{Metadata, Model};
use protocol::KvType;

use crate::context::padded;

/// What ggml calls the main processor.
const CPU: &str = "CPU";

/// Bytes of all tensors in the file.
pub(crate) fn weight_bytes(file: &Model) -> u64 {
    file.tensors().iter().map(|tensor| tensor.bytes).sum()
}

/// Bytes of keys and values for `n_slots` streams of `context` positions. Layers without attention have none; those with
/// a sliding window count as if they kept every position, which they do unless `swa_full` is off.
pub(crate) fn kv_bytes(file: &Model, context: u32, n_slots: u16, kv: KvType) -> u64 {
    let positions = u64::from(padded(context)) * u64::from(n_slots);
    let values: u64 = (0..file.n_layers()).map(|layer| values_per_position(file, layer)).sum();
    // Blocks of 32 values: a half-precision scale and the values.
    let bytes_per_32 = match kv {
        KvType::F16 => 64,
        KvType::Q8_0 => 34,
        KvType::Q4_0 => 18,
    };
    positions.saturating_mul(values) / 32 * bytes_per_32
}

/// Bytes of keys and values that all of a file's layers store for one position.
#[must_use]
pub fn position_bytes(file: &Model, kv: KvType) -> u64 {
    let step = padded(1);
    kv_bytes(file, step, 1, kv) / u64::from(step)
}

/// Keys and values that one layer stores for one position.
fn values_per_position(file: &Model, layer: u32) -> u64 {
    let arch = file.arch();
    let get = |key: &str| at_layer(file.metadata(), &format!("{arch}.{key}"), layer);
    // Multi-head latent attention stores the compressed key and its rotated part, and no value.
    if let (Some(rank), Some(_)) = (get("attention.kv_lora_rank"), get("attention.key_length_mla")) {
        return rank + get("rope.dimension_count").unwrap_or(0);
    }
    let heads = get("attention.head_count").unwrap_or(0);
    let kv_heads = get("attention.head_count_kv").unwrap_or(heads);
    let default = u64::from(file.n_embd()).checked_div(heads).unwrap_or(0);
    let key = get("attention.key_length").unwrap_or(default);
    let value = get("attention.value_length").unwrap_or(default);
    kv_heads.saturating_mul(key + value)
}

/// A number that is one for all layers or an array with one per layer.
fn at_layer(metadata: &Metadata, key: &str, layer: u32) -> Option<u64> {
    let value = metadata.get(key)?;
    match value.as_array() {
        Some(array) => array.to_u64s()?.get(layer as usize).copied(),
        None => value.as_u64(),
    }
}

/// Bytes that are free for a model: main memory and, if layers go to GPUs, the memory of those (of the one called
/// `device`, or of all). None if this system does not say.
pub(crate) fn free_bytes(gpu_layers: u32, device: Option<&str>) -> Option<u64> {
    let main = free_main_memory()?;
    if gpu_layers == 0 {
        return Some(main);
    }
    let is_used = |name: &str| name != CPU && device.is_none_or(|device| device == name);
    let gpus = crate::model::devices().into_iter().filter(|(name, _)| is_used(name));
    Some(gpus.map(|(_, free)| free).fold(main, u64::saturating_add))
}

/// ggml reports all memory as free on the CPU, so the kernel is asked: what could be used without swapping.
#[cfg(target_os = "linux")]
fn free_main_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(not(target_os = "linux"))]
fn free_main_memory() -> Option<u64> {
    crate::model::devices().into_iter().find_map(|(name, free)| (name == CPU).then_some(free))
}
