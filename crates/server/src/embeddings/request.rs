//! What a request for embeddings may say.

use protocol::Pooling;
use protocol::limits::MAX_ROW_WIDTH;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::MAX_INPUTS;
use crate::request::{self, Prompt};

/// Fields with a meaning that cannot be honoured.
pub(crate) const UNSUPPORTED: &[&str] = &["truncate_prompt_tokens"];

const INPUT: &str = "input";

/// Texts, and what shall come of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmbeddingRequest {
    /// 1 to [`MAX_INPUTS`], none of them empty.
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    /// Values of each embedding; all there are if absent.
    pub dimensions: Option<u32>,
    /// Absent: as the model's file says.
    pub pooling: Option<Pooling>,
    /// To unit length.
    pub normalise: bool,
    /// The lower the sooner.
    pub priority: i32,
}

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Float,
    /// Little-endian 32-bit floats one after another.
    Base64,
}

impl EmbeddingRequest {
    pub(crate) fn read(fields: &Fields) -> Result<Self, ApiError> {
        request::refuse(UNSUPPORTED, fields)?;
        let inputs = request::prompts(INPUT, fields.get(INPUT).ok_or_else(|| ApiError::missing(INPUT))?)?;
        if inputs.len() > MAX_INPUTS {
            let message =
                format!("`{INPUT}` has {} entries, but may have at most {MAX_INPUTS}", inputs.len());
            return Err(ApiError::value(INPUT, message));
        }
        if let Some(at) = inputs.iter().position(Prompt::is_empty) {
            let name = if inputs.len() == 1 { INPUT.to_owned() } else { format!("{INPUT}[{at}]") };
            let message = format!("`{name}` is empty: send some text");
            return Err(ApiError::value(name, message));
        }
        let dimensions = fields.integer("dimensions", 1..=i64::from(MAX_ROW_WIDTH))?;
        Ok(Self {
            inputs,
            encoding: encoding(fields)?,
            dimensions: dimensions.map(|n| n as u32),
            pooling: pooling(fields)?,
            normalise: normalise(fields)?,
            priority: fields.integer("priority", request::PRIORITIES)?.unwrap_or(0) as i32,
        })
    }
}

fn encoding(fields: &Fields) -> Result<Encoding, ApiError> {
    const NAME: &str = "encoding_format";
    match fields.text(NAME)? {
        None | Some("float") => Ok(Encoding::Float),
        Some("base64") => Ok(Encoding::Base64),
        Some(other) => {
            Err(ApiError::value(NAME, format!("`{NAME}` is `{other}`, but must be `float` or `base64`")))
        }
    }
}

fn pooling(fields: &Fields) -> Result<Option<Pooling>, ApiError> {
    const NAME: &str = "pooling";
    match fields.text(NAME)? {
        None => Ok(None),
        Some("none") => Ok(Some(Pooling::None)),
        Some("mean") => Ok(Some(Pooling::Mean)),
        Some("cls") => Ok(Some(Pooling::First)),
        Some("last") => Ok(Some(Pooling::Last)),
        Some(other) => {
            let message = format!("`{NAME}` is `{other}`, but must be `none`, `mean`, `cls` or `last`");
            Err(ApiError::value(NAME, message))
        }
    }
}

/// llama-server's norms by number; of them those that people use.
fn normalise(fields: &Fields) -> Result<bool, ApiError> {
    const NAME: &str = "embd_normalize";
    match fields.integer(NAME, -1..=2)? {
        None | Some(2) => Ok(true),
        Some(-1) => Ok(false),
        Some(other) => {
            let message = format!("`{NAME}` is {other}, but must be 2 (unit length) or -1 (as it is)");
            Err(ApiError::value(NAME, message))
        }
    }
}
