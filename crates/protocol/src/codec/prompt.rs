//! Bytes of what is wanted of a prompt, and of what is found.

use super::DecodeError;
use super::reader::Reader;
use super::work::{get_logprobs, put_logprobs};
use super::writer::Writer;
use crate::{Found, HiddenRows, OfPrompt, Pooling, PromptPart, limits};

pub(super) fn put_of_prompt(w: &mut Writer<'_>, v: &OfPrompt) {
    match v {
        OfPrompt::Logprobs { top } => {
            w.u8(0);
            w.u8(*top);
        }
        OfPrompt::Embedding(pooling) => {
            w.u8(1);
            w.u8(match pooling {
                Pooling::None => 0,
                Pooling::Mean => 1,
                Pooling::First => 2,
                Pooling::Last => 3,
            });
        }
    }
}

pub(super) fn get_of_prompt(r: &mut Reader<'_>) -> Result<OfPrompt, DecodeError> {
    const POOLING: &str = "open.of_prompt.pooling";
    match r.u8("open.of_prompt")? {
        0 => {
            let max = limits::MAX_TOP_LOGPROBS;
            Ok(OfPrompt::Logprobs { top: r.u8_in("open.of_prompt.top", 0, max)? })
        }
        1 => Ok(OfPrompt::Embedding(match r.u8(POOLING)? {
            0 => Pooling::None,
            1 => Pooling::Mean,
            2 => Pooling::First,
            3 => Pooling::Last,
            tag => return Err(DecodeError::UnknownTag { field: POOLING, tag }),
        })),
        tag => Err(DecodeError::UnknownTag { field: "open.of_prompt", tag }),
    }
}

pub(super) fn put_part(w: &mut Writer<'_>, v: &PromptPart) {
    w.u64(v.seq.0);
    w.place(v.base);
    match &v.found {
        Found::Logprobs(logprobs) => {
            w.u8(0);
            w.list(logprobs, put_logprobs);
        }
        Found::Rows(rows) => {
            w.u8(1);
            w.u32(rows.width);
            w.list(&rows.values, |w, &value| w.f32(value));
        }
    }
}

pub(super) fn get_part(r: &mut Reader<'_>) -> Result<PromptPart, DecodeError> {
    const FOUND: &str = "prompt.found";
    let (seq, base) = (r.seq("prompt.seq")?, r.place("prompt.base")?);
    let found = match r.u8(FOUND)? {
        0 => Found::Logprobs(r.list(FOUND, limits::MAX_ROWS as usize, 8, get_logprobs)?),
        1 => Found::Rows(get_rows(r)?),
        tag => return Err(DecodeError::UnknownTag { field: FOUND, tag }),
    };
    if found.is_empty() {
        return Err(DecodeError::Empty { field: FOUND });
    }
    if base.plus(found.len()).0 > limits::MAX_CONTEXT {
        return Err(DecodeError::Contradiction { field: FOUND, rule: "must end within the longest context" });
    }
    Ok(PromptPart { seq, base, found })
}

fn get_rows(r: &mut Reader<'_>) -> Result<HiddenRows, DecodeError> {
    const VALUES: &str = "prompt.rows.values";
    let width = r.u32_in("prompt.rows.width", 1, limits::MAX_ROW_WIDTH)?;
    let values = r.list(VALUES, limits::MAX_PART_VALUES, 4, |r| r.finite(VALUES))?;
    if !values.len().is_multiple_of(width as usize) {
        return Err(DecodeError::Contradiction { field: VALUES, rule: "must be whole rows" });
    }
    Ok(HiddenRows { width, values })
}
