//! What a model's file says about embeddings.

use gguf::Model;
use protocol::Pooling;

/// How the model wants a text's rows pooled: the mean where its file says nothing, as with chat models. None for a model
/// whose rows are no embeddings here: one that ranks, or that reads texts in both directions and so not in pieces.
pub(crate) fn of(model: &Model) -> Option<Pooling> {
    if model.arch_value("attention.causal").and_then(gguf::Value::as_bool) == Some(false) {
        return None;
    }
    // llama.cpp's `llama_pooling_type`.
    match model.arch_u32("pooling_type") {
        Some(0) => Some(Pooling::None),
        Some(1) | None => Some(Pooling::Mean),
        Some(2) => Some(Pooling::First),
        Some(3) => Some(Pooling::Last),
        Some(_) => None,
    }
}

/// Values in a row behind the model's last norm.
pub(crate) fn row_width(model: &Model) -> u32 {
    model.arch_u32("embedding_length_out").unwrap_or_else(|| model.n_embd())
}
