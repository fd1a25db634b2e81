//! The filters between penalties and the choice: llama.cpp's where they are pure, XTC on the position's noise.

use llama_cpp_sys_2 as sys;
use protocol::noise::{Draw, Noise};
use protocol::{SamplerParams, Token, XtcParams};

use super::candidates::{Candidates, Filter};

/// A token is dropped before typical-p if the best one is `e^80` times as likely: llama.cpp's entropy would become
/// 0 * ln 0, which is not a number, once a probability is rounded to zero.
const NEGLIGIBLE: f32 = 80.0;

/// The filters that are on, in order.
#[derive(Clone)]
pub(super) struct Filters {
    before_typical: Vec<Filter>,
    typical: Option<Filter>,
    after_typical: Vec<Filter>,
    xtc: Option<XtcParams>,
    dynamic_temperature: Option<Filter>,
    min_keep: usize,
}

impl Filters {
    pub(super) fn new(params: &SamplerParams) -> Self {
        let min_keep = params.min_keep as usize;
        let mut before_typical = Vec::new();
        if params.top_n_sigma > 0.0 {
            // SAFETY: makes a new sampler that masks logits in place.
            before_typical
                .push(unsafe { Filter::new(sys::llama_sampler_init_top_n_sigma(params.top_n_sigma)) });
        }
        if params.top_k > 0 {
            let k = i32::try_from(params.top_k).unwrap_or(i32::MAX);
            // SAFETY: makes a new sampler that sorts and shortens in place.
            before_typical.push(unsafe { Filter::new(sys::llama_sampler_init_top_k(k)) });
        }
        // SAFETY: makes a new sampler that reorders and shortens in place.
        let typical = (params.typical_p < 1.0)
            .then(|| unsafe { Filter::new(sys::llama_sampler_init_typical(params.typical_p, min_keep)) });
        let mut after_typical = Vec::new();
        if params.top_p < 1.0 {
            // SAFETY: makes a new sampler that sorts and shortens in place.
            after_typical.push(unsafe { Filter::new(sys::llama_sampler_init_top_p(params.top_p, min_keep)) });
        }
        if params.min_p > 0.0 {
            // SAFETY: makes a new sampler that shortens in place.
            after_typical.push(unsafe { Filter::new(sys::llama_sampler_init_min_p(params.min_p, min_keep)) });
        }
        let xtc = Some(params.xtc).filter(|xtc| xtc.probability > 0.0 && xtc.threshold <= 0.5);
        let dynamic_temperature = (params.dynatemp_range > 0.0).then(|| {
            let (temperature, range, exponent) =
                (params.temperature, params.dynatemp_range, params.dynatemp_exponent);
            // SAFETY: makes a new sampler that scales logits in place.
            unsafe { Filter::new(sys::llama_sampler_init_temp_ext(temperature, range, exponent)) }
        });
        Self { before_typical, typical, after_typical, xtc, dynamic_temperature, min_keep }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.before_typical.is_empty()
            && self.typical.is_none()
            && self.after_typical.is_empty()
            && self.xtc.is_none()
            && self.dynamic_temperature.is_none()
    }

    /// Filters; returns the temperature that is still to be applied.
    pub(super) fn apply(&mut self, candidates: &mut Candidates, temperature: f32, noise: Noise) -> f32 {
        for filter in &mut self.before_typical {
            candidates.apply(filter);
        }
        if let Some(typical) = &mut self.typical {
            let least = candidates.largest() - NEGLIGIBLE;
            candidates.retain(|_, logit| logit >= least);
            candidates.apply(typical);
        }
        for filter in &mut self.after_typical {
            candidates.apply(filter);
        }
        if let Some(xtc) = &self.xtc {
            exclude_top(candidates, xtc, self.min_keep, noise);
        }
        match &mut self.dynamic_temperature {
            Some(dynamic) => {
                candidates.apply(dynamic);
                1.0
            }
            None => temperature,
        }
    }
}

/// XTC: with the given probability, drops all tokens at or above the threshold but the least likely of them.
fn exclude_top(candidates: &mut Candidates, xtc: &XtcParams, min_keep: usize, noise: Noise) {
    if candidates.len() < 2 || noise.draw(Draw::Xtc) > f64::from(xtc.probability) {
        return;
    }
    let least_viable = candidates.log_sum(1.0) + f64::from(xtc.threshold.max(0.0)).ln();
    let is_viable = |logit: f32| f64::from(logit) >= least_viable;
    let viable: Vec<(Token, f32)> = candidates.iter().filter(|&(_, logit)| is_viable(logit)).collect();
    let least = viable.iter().copied().reduce(|a, b| if b.1 <= a.1 { b } else { a });
    let excluded = viable.len().saturating_sub(1);
    if excluded > 0 && candidates.len() - excluded >= min_keep {
        candidates.retain(|token, logit| !is_viable(logit) || least.is_some_and(|(stays, _)| stays == token));
    }
}
