//! The check at load that the captured tensor is the residual stream, and not merely of its name and shape.
//!
//! Random rows go in; the slice keeps the model's final norm, whose result the graph names `result_norm`. If the
//! captured rows are what that norm is applied to, the stage boundary is right. The check was measured on every
//! supported architecture: an error of 1e-6 or less, and 3.7 where a wrong tensor of the right shape was captured.

use gguf::Model;
use stage::Slot;

use crate::context::{Context, NotComputed, shown, tensor_name};
use crate::{LoadError, dequantize};

/// Random rows fed in, if a call may have so many.
const ROWS: usize = 3;
/// Largest difference allowed, relative to the largest value: far above rounding on any back end, far below what
/// another tensor gives.
const TOLERANCE: f64 = 0.02;

/// Refuses a slice whose captured tensor is missing, misshapen, or not the residual stream: not what the norm whose tensors
/// are called `norm` is applied to. Without one only the shape is looked at.
pub(crate) fn check_capture(
    context: &mut Context,
    file: &Model,
    norm: Option<&str>,
) -> Result<(), LoadError> {
    let unsuitable = |reason: String| LoadError::unsuitable(file.path(), reason);
    let width = context.model().row_width();
    let rows = random_rows(ROWS.min(context.max_rows()) * width);
    let hidden = capture(context, &rows).map_err(&unsuitable)?;
    let Some(norm) = norm else { return Ok(()) };
    let name = tensor_name("result_norm").expect("it is short and has no NUL byte");
    let own = context.tap().map(|tap| tap.rename(name));
    let normed = capture(context, &rows).map_err(&unsuitable)?;
    let mut captured = String::new();
    if let (Some(tap), Some(own)) = (context.tap(), own) {
        captured = shown(&own);
        tap.rename(own);
    }
    let norm = FinalNorm::read(file, norm, width).map_err(&unsuitable)?;
    let error = norm.error(&hidden, &normed, width);
    tracing::debug!(captured, error, "captured tensor checked");
    if error.is_finite() && error <= TOLERANCE {
        return Ok(());
    }
    Err(unsuitable(format!("its tensor {captured} is not what leaves the last layer (error {error:.2e})")))
}

/// Runs the rows through slot 0 and leaves it empty again.
fn capture(context: &mut Context, rows: &[f32]) -> Result<Vec<f32>, String> {
    let width = context.model().row_width();
    context.batch().clear();
    for (position, row) in (0_u32..).zip(rows.chunks_exact(width)) {
        if !context.batch().push_row(Slot(0), position, row, true) {
            return Err("llama.cpp does not take rows as input".to_owned());
        }
    }
    if let Some(tap) = context.tap() {
        tap.rows.clear();
        tap.fault = None;
    }
    context.compute().map_err(|error| match error {
        NotComputed::Cancelled => "the call was stopped".to_owned(),
        NotComputed::Failed(reason) => reason,
    })?;
    if !context.cut(Slot(0), 0) {
        return Err("its memory cannot be emptied".to_owned());
    }
    let tap = context.tap().ok_or("nothing is captured")?;
    let name = shown(tap.name());
    if let Some(fault) = tap.fault.take() {
        return Err(format!("its tensor {name} {fault}"));
    }
    let captured = std::mem::take(&mut tap.rows);
    if captured.len() == rows.len() {
        return Ok(captured);
    }
    Err(format!("its graph gives {} values of tensor {name} for {} of input", captured.len(), rows.len()))
}

/// The model's final norm.
struct FinalNorm {
    epsilon: f64,
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
}

impl FinalNorm {
    fn read(file: &Model, name: &str, width: usize) -> Result<Self, String> {
        let epsilon = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"]
            .iter()
            .find_map(|key| file.arch_value(key)?.as_f64())
            .unwrap_or(1e-5);
        Ok(Self {
            epsilon,
            weight: vector(file, &format!("{name}.weight"), width)?,
            bias: vector(file, &format!("{name}.bias"), width)?,
        })
    }

    /// The largest difference between the norm of `hidden` and `normed`, relative to the largest value: with the
    /// root mean square or with the layer norm, whichever fits.
    fn error(&self, hidden: &[f32], normed: &[f32], width: usize) -> f64 {
        let largest = normed.iter().fold(0.0_f64, |best, &value| best.max(f64::from(value).abs()));
        let error = |centred: bool| {
            let rows = hidden.chunks_exact(width).zip(normed.chunks_exact(width));
            rows.map(|(row, expected)| self.row_error(row, expected, centred)).fold(0.0, max_or_nan)
        };
        error(false).min(error(true)) / largest.max(f64::MIN_POSITIVE)
    }

    fn row_error(&self, row: &[f32], expected: &[f32], centred: bool) -> f64 {
        let n = row.len() as f64;
        let mean = if centred { row.iter().map(|&value| f64::from(value)).sum::<f64>() / n } else { 0.0 };
        let variance = row.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (variance + self.epsilon).sqrt();
        let at = |vector: &Option<Vec<f32>>, index: usize, default| {
            vector.as_ref().map_or(default, |vector| f64::from(vector[index]))
        };
        let difference = |index: usize| {
            let value = (f64::from(row[index]) - mean) * scale;
            let value = value * at(&self.weight, index, 1.0) + at(&self.bias, index, 0.0);
            (value - f64::from(expected[index])).abs()
        };
        (0..row.len()).map(difference).fold(0.0, max_or_nan)
    }
}

/// `f64::max` would hide what is not a number.
fn max_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn vector(file: &Model, name: &str, width: usize) -> Result<Option<Vec<f32>>, String> {
    let Some(tensor) = file.tensor(name) else { return Ok(None) };
    let bytes = file.read_tensor(tensor).map_err(|e| format!("its tensor {name} cannot be read: {e}"))?;
    let mut out = Vec::new();
    dequantize::append(tensor.ty, &bytes, width, &mut out)?;
    Ok(Some(out))
}

/// Values in -1..1 that look random and never change.
fn random_rows(n: usize) -> Vec<f32> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
