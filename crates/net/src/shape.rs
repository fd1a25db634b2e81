//! A slow network, one way: what a shape is, and when bytes that leave now would arrive. Pure.
//!
//! The model: bytes leave one after another at `rate`, then travel for `delay`, give or take `jitter`, and never
//! overtake each other, as on one TCP connection. A lost packet shows as TCP shows it: everything stands still until
//! it has been sent again, which takes the retransmission timeout (one round trip and 200 ms, the least that Linux
//! waits, RFC 6298). Jitter and loss follow from `seed`, so that a run can be repeated.

use std::{fmt, str::FromStr, time::Duration};

/// Bytes in one packet on the wire (Ethernet's 1500 less the headers): what can be lost at once.
const PACKET: u64 = 1448;
/// `TCP_RTO_MIN` of Linux.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Longest delay and jitter: far beyond any link that a line would run over.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// How a link is slowed down, one way; written as `delay=10ms,jitter=2ms,rate=100mbit,loss=0.1%,seed=7`, each part
/// optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Travel time, at most 60 s; kept to a few tenths of a millisecond.
    pub delay: Duration,
    /// Uniform deviation from `delay`, at most `delay`.
    pub jitter: Duration,
    /// Bits per second; `None` for no limit, never 0.
    pub rate: Option<u64>,
    /// Lost packets per million, at most 1,000,000.
    pub loss_ppm: u32,
    /// Of jitter and loss.
    pub seed: u64,
}

/// Text that is not a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A part without `=`.
    #[error("{0:?} is not of the form key=value, such as delay=10ms")]
    NotAPair(String),
    /// A key that does not exist.
    #[error("{0:?} is not one of delay, jitter, rate, loss, seed")]
    UnknownKey(String),
    /// A key given twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A value that the key does not take.
    #[error("{key}={value} is not {expected}")]
    BadValue {
        /// Which key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What the key takes.
        expected: &'static str,
    },
    /// A jitter above the delay.
    #[error("a jitter above the delay would let bytes arrive before they leave: raise delay or lower jitter")]
    JitterAboveDelay,
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        const DURATION: &str = "a duration up to 60s, such as 10ms or 1.5s";
        let mut shape = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| ShapeError::NotAPair(part.to_owned()))?;
            let bad = |key, expected| ShapeError::BadValue { key, value: value.to_owned(), expected };
            let key = match key {
                "delay" => {
                    shape.delay = delay(value).ok_or_else(|| bad("delay", DURATION))?;
                    "delay"
                }
                "jitter" => {
                    shape.jitter = delay(value).ok_or_else(|| bad("jitter", DURATION))?;
                    "jitter"
                }
                "rate" => {
                    let rate = rate(value).ok_or_else(|| bad("rate", "a rate above 0, such as 100mbit"))?;
                    shape.rate = Some(rate);
                    "rate"
                }
                "loss" => {
                    shape.loss_ppm = loss(value).ok_or_else(|| bad("loss", "a share such as 0.1%"))?;
                    "loss"
                }
                "seed" => {
                    shape.seed = value.parse().map_err(|_| bad("seed", "a whole number"))?;
                    "seed"
                }
                other => return Err(ShapeError::UnknownKey(other.to_owned())),
            };
            if seen.contains(&key) {
                return Err(ShapeError::Twice(key));
            }
            seen.push(key);
        }
        if shape.jitter > shape.delay {
            return Err(ShapeError::JitterAboveDelay);
        }
        Ok(shape)
    }
}

impl fmt::Display for Shape {
    /// The form that [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay={}us,jitter={}us", self.delay.as_micros(), self.jitter.as_micros())?;
        if let Some(rate) = self.rate {
            write!(f, ",rate={rate}bit")?;
        }
        write!(f, ",loss={}.{:04}%,seed={}", self.loss_ppm / 10_000, self.loss_ppm % 10_000, self.seed)
    }
}

/// A number of at least 0 with one of the units behind it, times the unit.
fn scaled(value: &str, units: &[(&str, f64)]) -> Option<f64> {
    let at = value.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = value.split_at(at);
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    Some(number.parse::<f64>().ok()? * factor)
}

/// A time with its unit, us, ms or s: `1.5s`. None if it is none.
#[must_use]
pub fn duration(value: &str) -> Option<Duration> {
    let us = scaled(value, &[("us", 1.0), ("ms", 1e3), ("s", 1e6)])?;
    Some(Duration::from_micros(us.round() as u64))
}

fn delay(value: &str) -> Option<Duration> {
    duration(value).filter(|&delay| delay <= MAX_DELAY)
}

fn rate(value: &str) -> Option<u64> {
    let bits = scaled(value, &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)])?.round() as u64;
    (1..=1_000_000_000_000).contains(&bits).then_some(bits)
}

fn loss(value: &str) -> Option<u32> {
    let ppm = scaled(value, &[("%", 1e4)])?.round();
    (ppm <= 1e6).then_some(ppm as u32)
}

/// A shape at work: times count from the start of the link.
#[derive(Clone, Debug)]
pub(crate) struct Shaper {
    shape: Shape,
    free_at: Duration,
    arrived: Duration,
    noise: u64,
}

impl Shaper {
    pub(crate) const fn new(shape: Shape) -> Self {
        Self { shape, free_at: Duration::ZERO, arrived: Duration::ZERO, noise: shape.seed }
    }

    /// From when on the next bytes can leave.
    pub(crate) const fn free_at(&self) -> Duration {
        self.free_at
    }

    /// Lets `bytes` leave at `now` or as soon as the bytes before them are out, and says when they arrive.
    pub(crate) fn send(&mut self, now: Duration, bytes: usize) -> Duration {
        let bytes = bytes as u64;
        let busy = self.shape.rate.map_or(0, |rate| bytes * 8 * 1_000_000_000 / rate);
        self.free_at = self.free_at.max(now) + Duration::from_nanos(busy);
        let mut arrival = self.free_at + self.shape.delay;
        if !self.shape.jitter.is_zero() {
            arrival = arrival + self.shape.jitter.mul_f64(2.0 * self.uniform()) - self.shape.jitter;
        }
        let lossless = 1.0 - f64::from(self.shape.loss_ppm) / 1e6;
        if self.shape.loss_ppm > 0 && self.uniform() >= lossless.powf(bytes.div_ceil(PACKET) as f64) {
            arrival += MIN_RTO + 2 * self.shape.delay;
        }
        self.arrived = self.arrived.max(arrival);
        self.arrived
    }

    /// A number in `0..1` (SplitMix64, Steele et al. 2014).
    fn uniform(&mut self) -> f64 {
        self.noise = self.noise.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.noise;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
