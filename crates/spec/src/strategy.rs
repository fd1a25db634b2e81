//! What an operator says about guessing.

use std::fmt;
use std::str::FromStr;

use protocol::Token;

use crate::chain::Order;
use crate::controller::Reach;
use crate::drafted::Drafted;
use crate::mtp::Mtp;
use crate::predicted::Predicted;
use crate::proposer::Proposer;
use crate::suffix::Suffix;
use crate::unigram::Unigram;

/// A source of guesses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The text that the client expects, if it says so.
    Predicted,
    /// What followed the longest earlier match.
    Suffix,
    /// The most frequent token, behind one that nothing has followed before.
    Unigram,
    /// The model's own blocks that draft (NextN), on the tail.
    Mtp,
    /// A second, smaller model, as the operator names it: a path. It runs elsewhere; its drafts come as events.
    Draft(String),
}

/// Who guesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// Nobody: plain decoding.
    #[default]
    Off,
    /// Every source that needs nothing but the request, the most promising first.
    Auto,
    /// The same, and this draft model.
    AutoWith(String),
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
    /// Tokens of a draft of the model's own, 1 to [`crate::MAX_DRAFT`]; as many as pay, up to
    /// [`crate::USUAL_DRAFT`], if that is left to the controller.
    pub draft_len: Option<u8>,
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

    /// The draft model that is wanted, if one is.
    #[must_use]
    pub fn draft_model(&self) -> Option<&str> {
        self.sources.draft_model()
    }

    /// Whether the model's own blocks are to draft.
    #[must_use]
    pub fn drafts_itself(&self) -> bool {
        matches!(&self.sources, Sources::List(list) if list.contains(&Source::Mtp))
    }

    /// For a model whose own blocks can draft: what `auto` means there, sources and order written out. The blocks go before
    /// what only looks at the text, which extends their drafts; the answer that a client expects goes before them, since it
    /// costs nothing. Lists are as they were given.
    #[must_use]
    pub fn for_a_model_that_drafts(&self) -> Self {
        let own = || vec![Source::Predicted, Source::Mtp, Source::Suffix, Source::Unigram];
        let sources = match &self.sources {
            Sources::Auto => Sources::List(own()),
            Sources::AutoWith(model) => Sources::List([own(), vec![Source::Draft(model.clone())]].concat()),
            given @ (Sources::Off | Sources::List(_)) => given.clone(),
        };
        Self { sources, ..self.clone() }
    }

    /// Whether the model's own blocks draft if there are any.
    #[must_use]
    pub fn may_draft_itself(&self) -> bool {
        self.for_a_model_that_drafts().drafts_itself()
    }

    /// The sources of one sequence and their order; `prediction` is the answer that the client expects.
    pub(crate) fn sources(&self, prediction: Option<Vec<Token>>) -> (Vec<Box<dyn Proposer>>, Order) {
        let list = self.sources.named();
        let order = match &self.sources {
            Sources::Auto | Sources::AutoWith(_) => Order::Best,
            Sources::Off | Sources::List(_) => Order::Given,
        };
        let mut prediction = prediction.filter(|text| !text.is_empty());
        let make = |source: &Source| -> Option<Box<dyn Proposer>> {
            match source {
                Source::Predicted => Some(Box::new(Predicted::new(prediction.take()?))),
                Source::Suffix => Some(Box::new(Suffix::new())),
                Source::Unigram => Some(Box::new(Unigram::new())),
                Source::Mtp => Some(Box::new(Mtp::new(self.draft_len))),
                Source::Draft(_) => Some(Box::new(Drafted::new())),
            }
        };
        (list.iter().filter_map(make).collect(), order)
    }
}

impl Sources {
    /// The draft model among them.
    #[must_use]
    pub fn draft_model(&self) -> Option<&str> {
        match self {
            Self::Off | Self::Auto => None,
            Self::AutoWith(model) => Some(model),
            Self::List(list) => list.iter().find_map(|source| match source {
                Source::Draft(model) => Some(model.as_str()),
                Source::Predicted | Source::Suffix | Source::Unigram | Source::Mtp => None,
            }),
        }
    }

    /// All of them by name.
    fn named(&self) -> Vec<Source> {
        let free = vec![Source::Predicted, Source::Suffix, Source::Unigram];
        match self {
            Self::Off => Vec::new(),
            Self::Auto => free,
            Self::AutoWith(model) => [free, vec![Source::Draft(model.clone())]].concat(),
            Self::List(list) => list.clone(),
        }
    }
}

/// A list of sources that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourcesError {
    /// A name that no source has.
    #[error(
        "{name:?} is no source of guesses: use auto, off, or a list of suffix, predicted, unigram, mtp and \
         draft=PATH"
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// A source that is listed twice.
    #[error("{name} is listed twice")]
    Twice {
        /// Its name.
        name: &'static str,
    },
    /// A draft model without a path.
    #[error("draft needs a model: write draft=PATH, where PATH is a GGUF file without a comma in its name")]
    NoModel,
    /// A list that begins with `auto` and names what `auto` has.
    #[error("auto chooses among the other sources by itself: only draft=PATH can follow it, not {name:?}")]
    WithAuto {
        /// What follows it.
        name: String,
    },
}

impl FromStr for Sources {
    type Err = SourcesError;

    /// `off`; `auto`, which a draft model may follow; or sources separated by commas. A draft model is `draft=PATH`.
    fn from_str(text: &str) -> Result<Self, SourcesError> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("auto,") {
            return match name.trim().parse()? {
                Source::Draft(model) if !model.contains(',') => Ok(Self::AutoWith(model)),
                _ => Err(SourcesError::WithAuto { name: name.into() }),
            };
        }
        let mut list = Vec::new();
        for name in text.split(',') {
            let source: Source = name.trim().parse()?;
            if list.iter().any(|listed: &Source| listed.name() == source.name()) {
                return Err(SourcesError::Twice { name: source.name() });
            }
            list.push(source);
        }
        Ok(Self::List(list))
    }
}

impl FromStr for Source {
    type Err = SourcesError;

    fn from_str(name: &str) -> Result<Self, SourcesError> {
        match name.split_once('=').unwrap_or((name, "")) {
            ("draft", "") => Err(SourcesError::NoModel),
            ("draft", model) => Ok(Self::Draft(model.into())),
            ("predicted", "") => Ok(Self::Predicted),
            ("suffix", "") => Ok(Self::Suffix),
            ("unigram", "") => Ok(Self::Unigram),
            ("mtp", "") => Ok(Self::Mtp),
            _ => Err(SourcesError::Unknown { name: name.into() }),
        }
    }
}

impl Source {
    const fn name(&self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Suffix => "suffix",
            Self::Unigram => "unigram",
            Self::Mtp => "mtp",
            Self::Draft(_) => "draft",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Draft(model) => write!(f, "={model}"),
            Self::Predicted | Self::Suffix | Self::Unigram | Self::Mtp => Ok(()),
        }
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::AutoWith(model) => write!(f, "auto,draft={model}"),
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
    fn auto_has_a_model_draft_that_can() {
        let means = |text: &str| {
            let asked = Speculate { sources: text.parse().unwrap(), ..Speculate::off() };
            (
                asked.for_a_model_that_drafts().sources.to_string(),
                asked.drafts_itself(),
                asked.may_draft_itself(),
            )
        };
        let own = "predicted,mtp,suffix,unigram";
        assert_eq!(means("auto"), (own.to_owned(), false, true));
        assert_eq!(means("auto,draft=a.gguf"), (format!("{own},draft=a.gguf"), false, true));
        assert_eq!(means("suffix"), ("suffix".to_owned(), false, false));
        assert_eq!(means("mtp"), ("mtp".to_owned(), true, true));
        assert_eq!(means("off"), ("off".to_owned(), false, false));
    }

    #[test]
    fn sources_are_read_as_they_are_written() {
        let lists =
            ["auto", "off", "suffix", "predicted,suffix", "unigram,suffix,predicted", "mtp", "mtp,suffix"];
        let with_model =
            ["auto,draft=/m/small.gguf", "draft=a b.gguf", "suffix,draft=C:\\x=1.gguf,predicted"];
        for text in lists.into_iter().chain(with_model) {
            assert_eq!(text.parse::<Sources>().unwrap().to_string(), text);
        }
        let model = |text: &str| text.parse::<Sources>().unwrap().draft_model().map(str::to_owned);
        assert_eq!(model("suffix, draft=small.gguf"), Some("small.gguf".to_owned()));
        assert_eq!((model("auto"), model("suffix")), (None, None));
        let error = |text: &str| text.parse::<Sources>().unwrap_err().to_string();
        assert_eq!(
            error("psychic"),
            "\"psychic\" is no source of guesses: use auto, off, or a list of suffix, predicted, unigram, mtp and \
             draft=PATH"
        );
        assert_eq!(error("suffix=3"), error("psychic").replace("psychic", "suffix=3"));
        for no_model in ["draft", "draft=", "suffix,draft"] {
            assert!(error(no_model).starts_with("draft needs a model"), "{no_model}");
        }
        assert_eq!(error("draft=a,draft=b"), "draft is listed twice");
        assert!(error("auto,suffix").starts_with("auto chooses"));
        assert!(error("auto,draft=a,draft=b").starts_with("auto chooses"));
        assert_eq!(error("suffix,suffix"), "suffix is listed twice");
    }
}
