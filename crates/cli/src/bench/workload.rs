//! What the benchmark asks: conversations that are the same in every run, and what an answer to them should be.
//!
//! Owns the prompts, in our own words. Every workload has a few variants, so that one lucky text does not decide.
//! Does not judge answers ([`super::judge`]) and knows no server.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Texts of `copy` and `summary`.
const PASSAGES: [&str; 3] =
    [include_str!("texts/harbour.txt"), include_str!("texts/clock.txt"), include_str!("texts/orchard.txt")];
/// The file of `edit`: 150 lines.
const FILE: &str = include_str!("texts/tank.py.txt");
/// What is replaced by what in it: in its first lines, which a short answer still reaches.
const EDITS: [(&str, &str); 3] = [
    ("LITRES = 400", "LITRES = 650"),
    ("RATE = 2.5", "RATE = 3.75"),
    ("PUMP = \"north\"", "PUMP = \"south\""),
];
const CODE: [&str; 3] = [
    "Write a Python class for a stack of integers with push, pop, peek, is_empty and size. Only the code.",
    "Write a Python function that reads a CSV file and returns the sum of each column. Only the code.",
    "Write a Rust struct for a bank account with deposit, withdraw and balance, and tests. Only the code.",
];
const CHAT: [&str; 4] = [
    "I sleep badly before long journeys. What could help me?",
    "What is the difference between a violin and a viola?",
    "My bread is always too dense. What am I doing wrong?",
    "Can you explain to my grandfather what a spreadsheet is for?",
];
const NOVEL: [&str; 4] = [
    "Write the first page of a novel about a lighthouse keeper who finds a door in the rocks.",
    "Tell a story in which a tailor, a goose and a broken bridge all matter.",
    "Describe a market on another planet as a traveller would, without repeating yourself.",
    "Write a letter from a sailor to his sister about the strangest week of his life.",
];
const JSON: [&str; 3] = [
    "List the eight planets as a JSON array of objects with the keys name, order, moons and has_rings. Only JSON.",
    "Write a JSON array of six invented employees with the keys id, name, role, city and salary. Only JSON.",
    "Write five weather readings as a JSON array of objects with the keys hour, celsius, wind and sky. Only JSON.",
];
const FORM: [&str; 3] = [
    "Fill in the inspection form of the pumping station at the harbour.",
    "Fill in the inspection form of the pumping station in the old town.",
    "Fill in the inspection form of the pumping station by the lake.",
];
/// What the answers of `form` look like: eight records of five fields, some 400 tokens.
const SCHEMA: &str = include_str!("texts/form.json");

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Workload {
    /// Repeat a passage word for word.
    Copy,
    /// Repeat a file of 150 lines with one small change; the client sends the file as the expected answer.
    Edit,
    /// Write a short program.
    Code,
    /// Summarise a passage.
    Summary,
    /// Answer a question from everyday life.
    Chat,
    /// Write something new.
    Novel,
    /// Write records with the same keys again and again.
    Json,
    /// Fill in a form whose JSON schema the client sends: much of the answer can be only one thing.
    Form,
}

/// One thing asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// What the user says.
    pub(super) prompt: String,
    /// What the client tells the server to expect.
    pub(super) prediction: Option<&'static str>,
    /// The JSON schema that the client has the answer follow.
    pub(super) schema: Option<&'static str>,
    /// What a right answer is.
    pub(super) wanted: Wanted,
}

/// What a right answer is, as far as a program can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Any text.
    Anything,
    /// JSON.
    Json,
    /// Exactly this text, or as much of it as there is room for.
    Text {
        /// The text.
        text: String,
        /// What must be in it for the change to have been made; none if nothing was to be changed.
        change: Option<&'static str>,
    },
}

impl Workload {
    /// All of them.
    pub(super) const ALL: [Self; 8] =
        [Self::Copy, Self::Edit, Self::Code, Self::Summary, Self::Chat, Self::Novel, Self::Json, Self::Form];

    /// The `n`-th task; after a few they come again.
    pub(super) fn task(self, n: usize) -> Task {
        let pick = |list: &[&str]| list[n % list.len()].to_owned();
        let plain =
            |prompt: String| Task { prompt, prediction: None, schema: None, wanted: Wanted::Anything };
        let passage = PASSAGES[n % PASSAGES.len()].trim_end();
        match self {
            Self::Copy => Task {
                wanted: Wanted::Text { text: passage.to_owned(), change: None },
                ..plain(format!("Repeat the following text word for word. Write nothing else.\n\n{passage}"))
            },
            Self::Edit => {
                let (old, new) = EDITS[n % EDITS.len()];
                let prompt = format!(
                    "Here is a file:\n\n{FILE}\nWrite the whole file again with one change: `{old}` becomes \
                     `{new}`. Write nothing else."
                );
                let text = FILE.replacen(old, new, 1);
                let wanted = Wanted::Text { text, change: Some(new) };
                Task { prediction: Some(FILE), wanted, ..plain(prompt) }
            }
            Self::Code => plain(pick(&CODE)),
            Self::Summary => plain(format!("Summarise this text in three sentences.\n\n{passage}")),
            Self::Chat => plain(pick(&CHAT)),
            Self::Novel => plain(pick(&NOVEL)),
            Self::Json => Task { wanted: Wanted::Json, ..plain(pick(&JSON)) },
            Self::Form => Task { schema: Some(SCHEMA), wanted: Wanted::Json, ..plain(pick(&FORM)) },
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Edit => "edit",
            Self::Code => "code",
            Self::Summary => "summary",
            Self::Chat => "chat",
            Self::Novel => "novel",
            Self::Json => "json",
            Self::Form => "form",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is no workload: choose from {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_read_as_they_are_written() {
        for workload in Workload::ALL {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        assert!("poem".parse::<Workload>().unwrap_err().contains("copy, edit, code"));
    }

    #[test]
    fn tasks_are_the_same_every_time_and_repeat_after_a_few() {
        for workload in Workload::ALL {
            assert_eq!(workload.task(1), workload.task(1));
            assert_eq!(workload.task(0), workload.task(12));
            assert_ne!(workload.task(0), workload.task(1));
        }
    }

    #[test]
    fn an_edit_changes_one_early_line_of_a_file_of_150() {
        assert_eq!(FILE.lines().count(), 150);
        for n in 0..EDITS.len() {
            let Wanted::Text { text, change } = Workload::Edit.task(n).wanted else { panic!() };
            let changed: Vec<_> =
                FILE.lines().zip(text.lines()).enumerate().filter(|(_, (a, b))| a != b).collect();
            assert_eq!(changed.len(), 1);
            let (at, (_, line)) = changed[0];
            assert!(at < 12 && Some(line) == change);
        }
    }
}
