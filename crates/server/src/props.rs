//! `GET /props`: what llama-server's clients ask before they chat, under its names.
//!
//! Says only what is true here: what llama-server has and this server has not is left out. Needs no line.

use axum::Json;
use axum::extract::State;
use protocol::{DryParams, SamplerParams, XtcParams};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::Api;
use crate::error::ApiError;
use crate::sampling::{MIROSTAT_ETA, MIROSTAT_TAU};
use crate::template;

/// Properties of the model and of how it is served.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Props {
    default_generation_settings: Settings,
    total_slots: u16,
    model_alias: String,
    model_path: String,
    modalities: Modalities,
    chat_template: String,
    bos_token: String,
    eos_token: String,
    endpoint_slots: bool,
    endpoint_props: bool,
    endpoint_metrics: bool,
    is_sleeping: bool,
    build_info: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Settings {
    n_ctx: u32,
    params: Params,
}

/// What a request that says nothing asks for. Sent with a request it changes nothing.
#[derive(Debug, Serialize, JsonSchema)]
struct Params {
    seed: i64,
    temperature: f32,
    dynatemp_range: f32,
    dynatemp_exponent: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    top_n_sigma: f32,
    xtc_probability: f32,
    xtc_threshold: f32,
    repeat_last_n: i32,
    repeat_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    dry_multiplier: f32,
    dry_base: f32,
    dry_allowed_length: i32,
    dry_penalty_last_n: i32,
    dry_sequence_breakers: Vec<String>,
    mirostat: u8,
    mirostat_tau: f32,
    mirostat_eta: f32,
    min_keep: u32,
    n_predict: i64,
    ignore_eos: bool,
    stream: bool,
}

impl Default for Params {
    fn default() -> Self {
        let sampler = SamplerParams::default();
        let DryParams { multiplier, base, allowed_length, penalty_last_n, sequence_breakers } = sampler.dry;
        let XtcParams { probability, threshold } = sampler.xtc;
        Self {
            seed: -1,
            temperature: sampler.temperature,
            dynatemp_range: sampler.dynatemp_range,
            dynatemp_exponent: sampler.dynatemp_exponent,
            top_k: sampler.top_k,
            top_p: sampler.top_p,
            min_p: sampler.min_p,
            typical_p: sampler.typical_p,
            top_n_sigma: sampler.top_n_sigma,
            xtc_probability: probability,
            xtc_threshold: threshold,
            repeat_last_n: sampler.penalty_last_n,
            repeat_penalty: sampler.repeat_penalty,
            presence_penalty: sampler.presence_penalty,
            frequency_penalty: sampler.frequency_penalty,
            dry_multiplier: multiplier,
            dry_base: base,
            dry_allowed_length: allowed_length,
            dry_penalty_last_n: penalty_last_n,
            dry_sequence_breakers: sequence_breakers,
            mirostat: 0,
            mirostat_tau: MIROSTAT_TAU,
            mirostat_eta: MIROSTAT_ETA,
            min_keep: sampler.min_keep,
            n_predict: -1,
            ignore_eos: false,
            stream: false,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct Modalities {
    vision: bool,
    video: bool,
    audio: bool,
}

/// `GET /props`.
pub(crate) async fn props(State(api): State<Api>) -> Result<Json<Props>, ApiError> {
    let info = &api.model()?.info;
    Ok(Json(Props {
        default_generation_settings: Settings { n_ctx: info.context, params: Params::default() },
        total_slots: info.parallel,
        model_alias: info.id.clone(),
        model_path: info.file.clone(),
        modalities: Modalities { vision: false, video: false, audio: false },
        chat_template: info.chat_template.clone().unwrap_or_else(|| template::CHATML.into()),
        bos_token: info.bos.clone(),
        eos_token: info.eos.clone(),
        endpoint_slots: false,
        endpoint_props: false,
        endpoint_metrics: true,
        is_sleeping: false,
        build_info: concat!("paceline ", env!("CARGO_PKG_VERSION")),
    }))
}
