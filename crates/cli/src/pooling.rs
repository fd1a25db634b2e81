//! What a model's file says about embeddings.

use gguf::Model;
use protocol::Pooling;

/// How the model wants a text's rows pooled: the mean where its file says nothing, as with chat models. None for a model
/// whose rows are no embeddings here: one that ranks, or that reads texts in both directions and so not in pieces.
pub(crate) fn of(model: &Model) -> Option<Pooling> {
    let causal = model.arch_value("attention.causal").and_then(gguf::Value::as_bool);
    told_by(causal, model.arch_u32("pooling_type"))
}

/// `kind` is llama.cpp's `llama_pooling_type`.
fn told_by(causal: Option<bool>, kind: Option<u32>) -> Option<Pooling> {
    if causal == Some(false) {
        return None;
    }
    match kind {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_models_pool_to_the_mean_and_others_as_they_say() {
        assert_eq!(told_by(None, None), Some(Pooling::Mean));
        assert_eq!(told_by(Some(true), Some(3)), Some(Pooling::Last));
        assert_eq!(told_by(None, Some(0)), Some(Pooling::None));
        assert_eq!(told_by(None, Some(4)), None, "it ranks");
        assert_eq!(told_by(Some(false), Some(1)), None, "it reads in both directions");
    }
}
