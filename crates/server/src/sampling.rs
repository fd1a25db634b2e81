//! Sampling parameters as clients write them: OpenAI's, llama.cpp's and vLLM's names.

use protocol::limits::{MAX_CONTEXT, MAX_DRY_BREAKERS, MAX_LOGIT_BIAS};
use protocol::{DryParams, Mirostat, SamplerParams, Token, XtcParams};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::MAX_BREAKER_BYTES;

/// Temperatures, penalties and the like beyond this have no meaning; it keeps every later product finite.
pub(crate) const LARGE: f32 = 1000.0;
/// llama.cpp's defaults for mirostat.
pub(crate) const MIROSTAT_TAU: f32 = 5.0;
pub(crate) const MIROSTAT_ETA: f32 = 0.1;

/// Reads all sampling parameters; what is absent is neutral. `n_vocab` bounds the tokens of `logit_bias`.
pub(crate) fn read(fields: &Fields, n_vocab: u32) -> Result<SamplerParams, ApiError> {
    let neutral = SamplerParams::default();
    let float = |name, range, default| fields.float(name, range).map(|value| value.unwrap_or(default));
    let tokens = i64::from(MAX_CONTEXT);
    Ok(SamplerParams {
        temperature: float("temperature", 0.0..=LARGE, neutral.temperature)?,
        dynatemp_range: float("dynatemp_range", 0.0..=LARGE, neutral.dynatemp_range)?,
        dynatemp_exponent: float("dynatemp_exponent", 0.0..=LARGE, neutral.dynatemp_exponent)?,
        // llama.cpp and vLLM: zero or less is off.
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map_or(neutral.top_k, |k| k.max(0) as u32),
        top_p: float("top_p", 0.0..=1.0, neutral.top_p)?,
        min_p: float("min_p", 0.0..=1.0, neutral.min_p)?,
        typical_p: first_float(fields, &["typical_p", "typ_p"], 0.0..=1.0)?.unwrap_or(neutral.typical_p),
        top_n_sigma: float("top_n_sigma", -LARGE..=LARGE, neutral.top_n_sigma)?,
        repeat_penalty: first_float(fields, &["repeat_penalty", "repetition_penalty"], 1e-3..=LARGE)?
            .unwrap_or(neutral.repeat_penalty),
        frequency_penalty: float("frequency_penalty", -LARGE..=LARGE, neutral.frequency_penalty)?,
        presence_penalty: float("presence_penalty", -LARGE..=LARGE, neutral.presence_penalty)?,
        penalty_last_n: fields
            .integer("repeat_last_n", -1..=tokens)?
            .map_or(neutral.penalty_last_n, |n| n as i32),
        logit_bias: logit_bias(fields, n_vocab)?,
        dry: dry(fields)?,
        xtc: xtc(fields)?,
        mirostat: mirostat(fields)?,
        min_keep: fields.integer("min_keep", 0..=i64::from(u32::MAX))?.map_or(neutral.min_keep, |n| n as u32),
        grammar: None,
    })
}

fn first_float(
    fields: &Fields,
    names: &[&str],
    range: std::ops::RangeInclusive<f32>,
) -> Result<Option<f32>, ApiError> {
    for name in names {
        if let Some(value) = fields.float(name, range.clone())? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn dry(fields: &Fields) -> Result<DryParams, ApiError> {
    let neutral = DryParams::default();
    let tokens = i64::from(MAX_CONTEXT);
    let sequence_breakers = match fields.get("dry_sequence_breakers") {
        None => neutral.sequence_breakers,
        Some(_) => fields.strings("dry_sequence_breakers", MAX_DRY_BREAKERS, MAX_BREAKER_BYTES)?,
    };
    Ok(DryParams {
        multiplier: fields.float("dry_multiplier", 0.0..=LARGE)?.unwrap_or(neutral.multiplier),
        base: fields.float("dry_base", 0.0..=LARGE)?.unwrap_or(neutral.base),
        allowed_length: fields
            .integer("dry_allowed_length", 0..=tokens)?
            .map_or(neutral.allowed_length, |n| n as i32),
        penalty_last_n: fields
            .integer("dry_penalty_last_n", -1..=tokens)?
            .map_or(neutral.penalty_last_n, |n| n as i32),
        sequence_breakers,
    })
}

fn xtc(fields: &Fields) -> Result<XtcParams, ApiError> {
    let neutral = XtcParams::default();
    Ok(XtcParams {
        probability: fields.float("xtc_probability", 0.0..=1.0)?.unwrap_or(neutral.probability),
        threshold: fields.float("xtc_threshold", 0.0..=1.0)?.unwrap_or(neutral.threshold),
    })
}

fn mirostat(fields: &Fields) -> Result<Option<Mirostat>, ApiError> {
    let tau = fields.float("mirostat_tau", 0.0..=LARGE)?.unwrap_or(MIROSTAT_TAU);
    let eta = fields.float("mirostat_eta", 0.0..=LARGE)?.unwrap_or(MIROSTAT_ETA);
    let version = fields.integer("mirostat", 0..=2)?.unwrap_or(0) as u8;
    Ok((version > 0).then_some(Mirostat { version, tau, eta, mu: 2.0 * tau }))
}

/// OpenAI's map from token id to bias, or llama.cpp's list of pairs; `false` as a bias forbids the token.
fn logit_bias(fields: &Fields, n_vocab: u32) -> Result<Vec<(Token, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let pairs: Vec<(Option<i64>, &Value)> = match fields.get(NAME) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map.iter().map(|(token, bias)| (token.parse().ok(), bias)).collect(),
        Some(Value::Array(list)) => list
            .iter()
            .map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([token, bias]) => Ok((fields::whole(token), bias)),
                _ => Err(fields::wrong(NAME, "a map from token ids to numbers", pair)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(fields::wrong(NAME, "a map from token ids to numbers", other)),
    };
    if pairs.len() > MAX_LOGIT_BIAS {
        return Err(ApiError::value(NAME, format!("`{NAME}` may hold at most {MAX_LOGIT_BIAS} tokens")));
    }
    pairs.into_iter().map(|(token, bias)| one_bias(token, bias, n_vocab)).collect()
}

fn one_bias(token: Option<i64>, bias: &Value, n_vocab: u32) -> Result<(Token, f32), ApiError> {
    const NAME: &str = "logit_bias";
    let token = token.filter(|&token| (0..i64::from(n_vocab)).contains(&token)).ok_or_else(|| {
        ApiError::value(NAME, format!("`{NAME}` must name token ids from 0 to {}", n_vocab.saturating_sub(1)))
    })?;
    let bias = match bias {
        Value::Bool(false) => f32::NEG_INFINITY,
        _ => bias
            .as_f64()
            .map(|bias| bias as f32)
            .filter(|bias| bias.is_finite())
            .ok_or_else(|| fields::wrong(NAME, "a map from token ids to numbers", bias))?,
    };
    Ok((Token(token as i32), bias))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn params(body: &Value) -> Result<SamplerParams, ApiError> {
        read(&Fields::parse(body.to_string().as_bytes()).unwrap(), 100)
    }

    #[test]
    fn nothing_given_is_neutral() {
        assert_eq!(
            params(&json!({ "temperature": null, "n_predict": 3 })).unwrap(),
            SamplerParams::default()
        );
    }

    #[test]
    fn every_parameter_arrives_under_its_usual_name() {
        let body = json!({
            "temperature": 0.5, "dynatemp_range": 0.25, "dynatemp_exponent": 2, "top_k": 40, "top_p": 0.75,
            "min_p": 0.125, "typical_p": 0.5, "top_n_sigma": 1, "repetition_penalty": 1.5, "frequency_penalty": 1,
            "presence_penalty": -1, "repeat_last_n": -1, "logit_bias": { "7": -100, "8": false }, "min_keep": 2,
            "dry_multiplier": 1, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 4,
            "dry_sequence_breakers": ["x"], "xtc_probability": 0.5, "xtc_threshold": 0.25,
            "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5,
        });
        let expected = SamplerParams {
            temperature: 0.5,
            dynatemp_range: 0.25,
            dynatemp_exponent: 2.0,
            top_k: 40,
            top_p: 0.75,
            min_p: 0.125,
            typical_p: 0.5,
            top_n_sigma: 1.0,
            repeat_penalty: 1.5,
            frequency_penalty: 1.0,
            presence_penalty: -1.0,
            penalty_last_n: -1,
            logit_bias: vec![(Token(7), -100.0), (Token(8), f32::NEG_INFINITY)],
            dry: DryParams {
                multiplier: 1.0,
                base: 2.0,
                allowed_length: 3,
                penalty_last_n: 4,
                sequence_breakers: vec!["x".into()],
            },
            xtc: XtcParams { probability: 0.5, threshold: 0.25 },
            mirostat: Some(Mirostat { version: 2, tau: 3.0, eta: 0.5, mu: 6.0 }),
            min_keep: 2,
            grammar: None,
        };
        assert_eq!(params(&body).unwrap(), expected);
    }

    #[test]
    fn values_without_meaning_are_refused_by_name() {
        for (name, value) in [
            ("temperature", json!(-1)),
            ("temperature", json!(1e300)),
            ("temperature", json!("hot")),
            ("top_p", json!(1.5)),
            ("top_k", json!(0.5)),
            ("repeat_penalty", json!(0)),
            ("mirostat", json!(3)),
            ("logit_bias", json!({ "100": 1 })),
            ("logit_bias", json!({ "x": 1 })),
            ("logit_bias", json!({ "1": true })),
            ("logit_bias", json!([[1]])),
            ("dry_sequence_breakers", json!([1])),
        ] {
            let error = params(&json!({ name: value })).unwrap_err();
            assert!(
                matches!(&error, ApiError::Invalid { param: Some(param), .. } if param == name),
                "{name}: {error:?}"
            );
        }
    }
}
