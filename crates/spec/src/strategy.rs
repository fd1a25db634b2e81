//! What an operator says about guessing.

use std::fmt;
use std::str::FromStr;

use protocol::Token;

use crate::chain::Order;
use crate::controller::Reach;
use crate::predicted::Predicted;
use crate::proposer::Proposer;
use crate::suffix::Suffix;

/// A source that needs nothing but the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The text that the client expects, if it says so.
    Predicted,
    /// What followed the longest earlier match.
    Suffix,
}

/// Who guesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// Nobody: plain decoding.
    #[default]
    Off,
    /// Every source there is, the most promising first.
    Auto,
    /// These, in this order.
    List(Vec<Source>),
}

/// Who guesses, and how wide and deep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Speculate {
    /// The sources.
    pub sources: Sources,
    /// Limits, and what is not left to the controller.
    pub reach: Reach,
}

impl Speculate {
    /// Plain decoding.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Every source, width and depth chosen as the text and the line demand.
    #[must_use]
    pub fn auto() -> Self {
        Self { sources: Sources::Auto, ..Self::default() }
    }

    /// The sources of one sequence and their order; `prediction` is the answer that the client expects.
    pub(crate) fn sources(&self, prediction: Option<Vec<Token>>) -> (Vec<Box<dyn Proposer>>, Order) {
        let (list, order): (&[Source], _) = match &self.sources {
            Sources::Off => (&[], Order::Given),
            Sources::Auto => (&[Source::Predicted, Source::Suffix], Order::Best),
            Sources::List(list) => (list, Order::Given),
        };
        let mut prediction = prediction.filter(|text| !text.is_empty());
        let make = |source: &Source| -> Option<Box<dyn Proposer>> {
            match source {
                Source::Predicted => Some(Box::new(Predicted::new(prediction.take()?))),
                Source::Suffix => Some(Box::new(Suffix::new())),
            }
        };
        (list.iter().filter_map(make).collect(), order)
    }
}

/// A list of sources that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourcesError {
    /// A name that no source has.
    #[error("{name:?} is no source of guesses: use auto, off, or a list of suffix and predicted")]
    Unknown {
        /// The name.
        name: String,
    },
    /// A source that is listed twice.
    #[error("{name} is listed twice")]
    Twice {
        /// Its name.
        name: Source,
    },
}

impl FromStr for Sources {
    type Err = SourcesError;

    /// `auto`, `off`, or names separated by commas.
    fn from_str(text: &str) -> Result<Self, SourcesError> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let mut list = Vec::new();
        for name in text.split(',') {
            let source = match name.trim() {
                "predicted" => Source::Predicted,
                "suffix" => Source::Suffix,
                name => return Err(SourcesError::Unknown { name: name.into() }),
            };
            if list.contains(&source) {
                return Err(SourcesError::Twice { name: source });
            }
            list.push(source);
        }
        Ok(Self::List(list))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Predicted => "predicted",
            Self::Suffix => "suffix",
        })
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::List(list) => list
                .iter()
                .enumerate()
                .try_for_each(|(i, source)| write!(f, "{}{source}", if i == 0 { "" } else { "," })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_as_they_are_written() {
        for text in ["auto", "off", "suffix", "predicted,suffix", "suffix,predicted"] {
            assert_eq!(text.parse::<Sources>().unwrap().to_string(), text);
        }
        let error = |text: &str| text.parse::<Sources>().unwrap_err().to_string();
        assert_eq!(
            error("psychic"),
            "\"psychic\" is no source of guesses: use auto, off, or a list of suffix and predicted"
        );
        assert_eq!(error("suffix,suffix"), "suffix is listed twice");
    }
}
