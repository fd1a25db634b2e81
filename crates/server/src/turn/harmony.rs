//! The syntax of gpt-oss: messages with a header that names a channel and, for calls, whom they are for.

use super::{Calls, Part, certain, say};

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

/// Where in a message the text is.
#[derive(Debug, Default)]
pub(super) enum Harmony {
    #[default]
    Header,
    Reasoning,
    Text,
    Arguments,
    /// Text to nobody: calls of tools that nobody offered.
    Lost,
}

impl Harmony {
    /// What the text is part of.
    fn part(&self) -> Option<fn(String) -> Part> {
        match self {
            Self::Reasoning => Some(Part::Reasoning),
            Self::Text => Some(Part::Text),
            Self::Arguments => Some(Part::Arguments),
            Self::Header | Self::Lost => None,
        }
    }

    pub(super) fn step(&mut self, held: &mut String, calls: &mut Calls, out: &mut Vec<Part>) -> bool {
        match self {
            Self::Header => {
                if Self::is_headless(held) {
                    *self = Self::Text;
                    return true;
                }
                let Some(end) = held.find(MESSAGE) else { return false };
                let body = Self::of_header(&held[..end], calls, out);
                held.drain(..end + MESSAGE.len());
                *self = body;
                !calls.over
            }
            Self::Reasoning | Self::Text | Self::Arguments | Self::Lost => {
                let found = ENDS.iter().filter_map(|end| Some((held.find(end)?, *end))).min();
                let certain = found.map_or_else(|| certain(held, ENDS), |(at, _)| at);
                if let Some(part) = self.part() {
                    let text = &held[..certain];
                    say(if found.is_some() { text.trim_end() } else { text }, part, out);
                }
                held.drain(..certain + found.map_or(0, |(_, end)| end.len()));
                if found.is_some() {
                    *self = Self::Header;
                }
                found.is_some()
            }
        }
    }

    /// A model that forgets the header answers in plain text.
    fn is_headless(held: &str) -> bool {
        let said = held.trim_start();
        let mut known = [CHANNEL, MESSAGE, CONSTRAIN, "assistant", "to="].iter().chain(ENDS);
        !said.is_empty() && !known.any(|word| said.starts_with(word) || word.starts_with(said))
    }

    fn of_header(header: &str, calls: &mut Calls, out: &mut Vec<Part>) -> Self {
        let after = |mark: &str| header.split_once(mark).map(|(_, rest)| word(rest));
        let recipient = after("to=").and_then(|to| to.strip_prefix("functions."));
        match (recipient, after(CHANNEL)) {
            (Some(_), _) if calls.tools.is_empty() => Self::Lost,
            (Some(name), _) => {
                if calls.begin(name, out) {
                    Self::Arguments
                } else {
                    Self::Lost
                }
            }
            (None, Some("analysis")) => Self::Reasoning,
            (None, _) => Self::Text,
        }
    }

    pub(super) fn finish(&self, held: &str, out: &mut Vec<Part>) {
        if let Some(part) = self.part() {
            say(held.trim_end(), part, out);
        }
    }
}

/// The first word, up to blanks or a special token.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace()).unwrap_or(text.len());
    let text = &text[..end];
    let mark = [CHANNEL, CONSTRAIN, MESSAGE].iter().filter_map(|mark| text.find(mark)).min();
    &text[..mark.unwrap_or(text.len())]
}
