//! Which requests are traced: the samplers that OpenTelemetry has names for.

use std::str::FromStr;

use super::parent::Parent;

/// Decides at a request's arrival, for the whole of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Share of traces that begin here and are recorded, 0 to 1.
    share: f64,
    /// Whether a caller that belongs to a trace has decided already.
    follows_caller: bool,
}

impl Default for Sampler {
    /// OpenTelemetry's: everything that no caller has decided against.
    fn default() -> Self {
        Self { share: 1.0, follows_caller: true }
    }
}

/// A name that OpenTelemetry has not, or has not for us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no sampler: use always_on, always_off, traceidratio, or one of them behind `parentbased_`")]
pub struct UnknownSampler(String);

/// A share outside 0 to 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no share of requests: write a number from 0 to 1, such as 0.1")]
pub struct NoShare(String);

impl Sampler {
    /// A sampler by OpenTelemetry's name; one by share still needs it, and takes all until then.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn named(name: &str) -> Result<Self, UnknownSampler> {
        let (rule, follows_caller) =
            name.strip_prefix("parentbased_").map_or((name, false), |rule| (rule, true));
        let share = match rule {
            "always_on" | "traceidratio" => 1.0,
            "always_off" => 0.0,
            _ => return Err(UnknownSampler(name.into())),
        };
        Ok(Self { share, follows_caller })
    }

    /// The same for another share of requests.
    #[must_use]
    pub const fn with_share(self, Share(share): Share) -> Self {
        Self { share, ..self }
    }

    /// Whether a request is traced. The decision by share looks at the trace's id, as other services do, so that those who
    /// record the same share record the same traces.
    pub(crate) fn takes(self, trace: u128, parent: Option<&Parent>) -> bool {
        match parent {
            Some(parent) if self.follows_caller => parent.sampled,
            // As a number with 53 bits the largest id is not less than 1.
            _ => self.share >= 1.0 || ((trace as u64 >> 1) as f64) < self.share * (1_u64 << 63) as f64,
        }
    }
}

/// A share of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(f64);

impl FromStr for Share {
    type Err = NoShare;

    fn from_str(text: &str) -> Result<Self, NoShare> {
        let share = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| NoShare(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(sampled: bool) -> Parent {
        Parent { trace: 1, span: 1, sampled, state: None }
    }

    #[test]
    fn a_caller_that_has_decided_is_followed_if_the_sampler_says_so() {
        for (name, alone, unsampled, sampled) in [
            ("always_on", true, true, true),
            ("always_off", false, false, false),
            ("parentbased_always_on", true, false, true),
            ("parentbased_always_off", false, false, true),
            ("parentbased_traceidratio", true, false, true),
        ] {
            let sampler = Sampler::named(name).unwrap();
            assert_eq!(sampler.takes(u128::MAX, None), alone, "{name}");
            assert_eq!(sampler.takes(u128::MAX, Some(&parent(false))), unsampled, "{name}");
            assert_eq!(sampler.takes(u128::MAX, Some(&parent(true))), sampled, "{name}");
        }
        assert_eq!(Sampler::default(), Sampler::named("parentbased_always_on").unwrap());
        assert!(Sampler::named("jaeger_remote").unwrap_err().to_string().contains("traceidratio"));
    }

    #[test]
    fn a_share_is_taken_by_the_trace_id() {
        let quarter = Sampler::named("traceidratio").unwrap().with_share("0.25".parse().unwrap());
        let taken = (0..1000_u64).filter(|n| {
            // Spread over all ids.
            quarter.takes(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), None)
        });
        assert!((240..=260).contains(&taken.count()));
        let none = quarter.with_share("0".parse().unwrap());
        assert!(!none.takes(0, None) && !none.takes(u128::MAX, None));
        for bad in ["", "1.1", "-0.1", "NaN", "all"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
    }
}
