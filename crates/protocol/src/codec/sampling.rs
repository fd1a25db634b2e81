//! Bytes of sampling parameters.

use super::DecodeError;
use super::reader::Reader;
use super::writer::Writer;
use crate::{After, DryParams, Grammar, GrammarKind, Mirostat, SamplerParams, XtcParams, limits};

pub(super) fn put_sampler(w: &mut Writer<'_>, v: &SamplerParams) {
    w.f32(v.temperature);
    w.f32(v.dynatemp_range);
    w.f32(v.dynatemp_exponent);
    w.u32(v.top_k);
    w.f32(v.top_p);
    w.f32(v.min_p);
    w.f32(v.typical_p);
    w.f32(v.top_n_sigma);
    w.f32(v.repeat_penalty);
    w.f32(v.frequency_penalty);
    w.f32(v.presence_penalty);
    w.i32(v.penalty_last_n);
    w.list(&v.logit_bias, |w, &(token, bias)| {
        w.token(token);
        w.f32(bias);
    });
    w.f32(v.dry.multiplier);
    w.f32(v.dry.base);
    w.i32(v.dry.allowed_length);
    w.i32(v.dry.penalty_last_n);
    w.list(&v.dry.sequence_breakers, |w, text| w.text(text));
    w.f32(v.xtc.probability);
    w.f32(v.xtc.threshold);
    w.option(v.mirostat.as_ref(), |w, v| {
        w.u8(v.version);
        w.f32(v.tau);
        w.f32(v.eta);
        w.f32(v.mu);
    });
    w.u32(v.min_keep);
    w.option(v.grammar.as_ref(), |w, v| {
        w.u8(match v.kind {
            GrammarKind::JsonSchema => 0,
            GrammarKind::Regex => 1,
            GrammarKind::Lark => 2,
            GrammarKind::Gbnf => 3,
        });
        w.whole_text(&v.text);
        w.option(v.after.as_ref(), |w, after| {
            w.text(&after.text);
            w.flag(after.may_end);
        });
        w.tokens(&v.said);
    });
}

pub(super) fn get_sampler(r: &mut Reader<'_>) -> Result<SamplerParams, DecodeError> {
    Ok(SamplerParams {
        temperature: r.finite("sampler.temperature")?,
        dynatemp_range: r.finite("sampler.dynatemp_range")?,
        dynatemp_exponent: r.finite("sampler.dynatemp_exponent")?,
        top_k: r.u32("sampler.top_k")?,
        top_p: r.finite("sampler.top_p")?,
        min_p: r.finite("sampler.min_p")?,
        typical_p: r.finite("sampler.typical_p")?,
        top_n_sigma: r.finite("sampler.top_n_sigma")?,
        repeat_penalty: r.finite("sampler.repeat_penalty")?,
        frequency_penalty: r.finite("sampler.frequency_penalty")?,
        presence_penalty: r.finite("sampler.presence_penalty")?,
        penalty_last_n: r.i32_from("sampler.penalty_last_n", -1)?,
        logit_bias: r.list("sampler.logit_bias", limits::MAX_LOGIT_BIAS, 8, |r| {
            Ok((r.token("sampler.logit_bias.token")?, r.log_weight("sampler.logit_bias.bias")?))
        })?,
        dry: get_dry(r)?,
        xtc: XtcParams {
            probability: r.finite("sampler.xtc.probability")?,
            threshold: r.finite("sampler.xtc.threshold")?,
        },
        mirostat: r.option("sampler.mirostat", get_mirostat)?,
        min_keep: r.u32("sampler.min_keep")?,
        grammar: r.option("sampler.grammar", get_grammar)?,
    })
}

fn get_dry(r: &mut Reader<'_>) -> Result<DryParams, DecodeError> {
    Ok(DryParams {
        multiplier: r.finite("sampler.dry.multiplier")?,
        base: r.finite("sampler.dry.base")?,
        allowed_length: r.i32_from("sampler.dry.allowed_length", i32::MIN)?,
        penalty_last_n: r.i32_from("sampler.dry.penalty_last_n", -1)?,
        sequence_breakers: r.list("sampler.dry.sequence_breakers", limits::MAX_DRY_BREAKERS, 4, |r| {
            r.text("sampler.dry.sequence_breakers", limits::MAX_DRY_BREAKERS)
        })?,
    })
}

fn get_mirostat(r: &mut Reader<'_>) -> Result<Mirostat, DecodeError> {
    let version = r.u8("sampler.mirostat.version")?;
    if !matches!(version, 1 | 2) {
        return Err(DecodeError::UnknownTag { field: "sampler.mirostat.version", tag: version });
    }
    Ok(Mirostat {
        version,
        tau: r.finite("sampler.mirostat.tau")?,
        eta: r.finite("sampler.mirostat.eta")?,
        mu: r.finite("sampler.mirostat.mu")?,
    })
}

fn get_grammar(r: &mut Reader<'_>) -> Result<Grammar, DecodeError> {
    const KIND: &str = "sampler.grammar.kind";
    let kind = match r.u8(KIND)? {
        0 => GrammarKind::JsonSchema,
        1 => GrammarKind::Regex,
        2 => GrammarKind::Lark,
        3 => GrammarKind::Gbnf,
        tag => return Err(DecodeError::UnknownTag { field: KIND, tag }),
    };
    Ok(Grammar {
        kind,
        text: r.text("sampler.grammar.text", limits::MAX_GRAMMAR_BYTES)?,
        after: r.option("sampler.grammar.after", |r| {
            let text = r.text("sampler.grammar.after.text", limits::MAX_TEXT)?;
            Ok(After { text, may_end: r.flag("sampler.grammar.after.may_end")? })
        })?,
        said: r.tokens("sampler.grammar.said", limits::MAX_CONTEXT as usize)?,
    })
}
