//! Embeddings as OpenAI's API writes them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use protocol::{HiddenRows, Pooling};
use schemars::JsonSchema;
use serde::Serialize;

use super::request::Encoding;

/// How rows become an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) encoding: Encoding,
    pub(super) pooling: Pooling,
    /// Values of each embedding that are kept.
    pub(super) dimensions: usize,
    pub(super) normalise: bool,
}

/// The body of an answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Embeddings")]
pub(crate) struct Answer {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EmbeddingUsage")]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Embedding")]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Values,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
enum Values {
    Numbers(Vec<f32>),
    Base64(String),
    /// One for each token; always numbers, since OpenAI's clients ask for base64 unless they are told otherwise and know
    /// only one text per embedding.
    Rows(Vec<Vec<f32>>),
}

impl Answer {
    /// What came of the inputs, in their order.
    pub(super) fn new(model: String, found: Vec<HiddenRows>, prompt_tokens: u64, shape: Shape) -> Self {
        let width = found.first().map_or(0, |rows| rows.width as usize);
        let notice = (shape.dimensions < width).then(|| {
            let rest = if shape.normalises() { " and brought to unit length again" } else { "" };
            format!(
                "embeddings were cut from {width} to {} values{rest}; of a model that was not trained to be cut they \
                 compare less well",
                shape.dimensions
            )
        });
        let data = found.into_iter().enumerate();
        let entry = |(index, rows)| Entry { object: "embedding", index, embedding: shape.values(rows) };
        Self {
            object: "list",
            data: data.map(entry).collect(),
            model,
            usage: Usage { prompt_tokens, total_tokens: prompt_tokens },
            notice,
        }
    }
}

impl Shape {
    /// As llama-server has it, rows that are not pooled stay as the model made them.
    fn normalises(&self) -> bool {
        self.normalise && self.pooling != Pooling::None
    }

    fn values(&self, rows: HiddenRows) -> Values {
        let HiddenRows { width, mut values } = rows;
        if self.pooling == Pooling::None {
            let rows = values.chunks_exact(width.max(1) as usize);
            let cut = |row: &[f32]| row[..self.dimensions.min(row.len())].to_vec();
            return Values::Rows(rows.map(cut).collect());
        }
        values.truncate(self.dimensions);
        if self.normalises() {
            normalise(&mut values);
        }
        match self.encoding {
            Encoding::Float => Values::Numbers(values),
            Encoding::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Values::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

/// To unit length, with llama.cpp's arithmetic; nothing stays nothing.
fn normalise(values: &mut [f32]) {
    let sum: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let factor = if sum > 0.0 { (1.0 / sum.sqrt()) as f32 } else { 0.0 };
    values.iter_mut().for_each(|value| *value *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { encoding: Encoding::Float, pooling: Pooling::Mean, dimensions: 3, normalise: true };

    fn rows(values: &[f32]) -> HiddenRows {
        HiddenRows { width: 3, values: values.to_vec() }
    }

    #[test]
    fn embeddings_have_unit_length_also_when_they_are_cut() {
        let values = |shape: Shape| shape.values(rows(&[3.0, 4.0, 12.0]));
        let thirteenth = (1.0_f64 / 13.0) as f32;
        let whole = [3.0, 4.0, 12.0].map(|value| value * thirteenth);
        assert_eq!(values(SHAPE), Values::Numbers(whole.to_vec()));
        let fifth = (1.0_f64 / 5.0) as f32;
        assert_eq!(values(Shape { dimensions: 2, ..SHAPE }), Values::Numbers(vec![3.0 * fifth, 4.0 * fifth]));
        assert_eq!(values(Shape { normalise: false, ..SHAPE }), Values::Numbers(vec![3.0, 4.0, 12.0]));
        assert_eq!(SHAPE.values(rows(&[0.0; 3])), Values::Numbers(vec![0.0; 3]));
    }

    #[test]
    fn base64_is_little_endian_floats() {
        let shape = Shape { encoding: Encoding::Base64, dimensions: 1, ..SHAPE };
        assert_eq!(shape.values(rows(&[2.0, 0.0, 0.0])), Values::Base64("AACAPw==".into()));
    }

    #[test]
    fn rows_that_are_not_pooled_stay_as_they_are_and_numbers() {
        let shape = Shape { pooling: Pooling::None, encoding: Encoding::Base64, dimensions: 2, ..SHAPE };
        let expected = Values::Rows(vec![vec![1.0, 2.0], vec![4.0, 5.0]]);
        assert_eq!(shape.values(rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])), expected);
    }
}
