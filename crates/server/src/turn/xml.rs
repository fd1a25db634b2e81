//! The arguments of a call in Qwen's XML, one element for each, as the JSON object that clients expect.
//!
//! Texts stand there as they are and go out while they are written; other values go out whole.

use serde_json::{Value, json};

use super::{Part, say};
use crate::stop::overlap;

const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";

/// See the module.
#[derive(Debug)]
pub(super) struct XmlScan {
    /// Arguments that are texts.
    texts: Vec<String>,
    n_arguments: usize,
    inside: Option<Inside>,
}

/// The value being read.
#[derive(Debug)]
struct Inside {
    is_text: bool,
    /// The line end behind the opening has been left out.
    begun: bool,
}

impl XmlScan {
    pub(super) const fn new(texts: Vec<String>) -> Self {
        Self { texts, n_arguments: 0, inside: None }
    }

    /// Takes what is certain from `held`; whether the call is over.
    pub(super) fn step(&mut self, held: &mut String, out: &mut Vec<Part>) -> bool {
        loop {
            let goes_on = match &mut self.inside {
                Some(inside) => {
                    let over = value(inside, held, out);
                    if over {
                        self.inside = None;
                    }
                    over
                }
                None => {
                    let blanks = held.len() - held.trim_start().len();
                    held.drain(..blanks);
                    if let Some(rest) = held.strip_prefix(FUNCTION_END) {
                        *held = rest.to_owned();
                        self.end(out);
                        return true;
                    }
                    let may_become = |mark: &str| mark.starts_with(held.as_str());
                    if !held.starts_with(PARAMETER) && !may_become(PARAMETER) && !may_become(FUNCTION_END) {
                        // Whatever this is, it is no argument.
                        self.end(out);
                        return true;
                    }
                    self.open(held, out)
                }
            };
            if !goes_on {
                return false;
            }
        }
    }

    /// The beginning of an argument, if it is all there.
    fn open(&mut self, held: &mut String, out: &mut Vec<Part>) -> bool {
        let Some((name, rest)) = held.strip_prefix(PARAMETER).and_then(|rest| rest.split_once('>')) else {
            return false;
        };
        let is_text = self.texts.iter().any(|text| text == name);
        let before = if self.n_arguments == 0 { "{" } else { ", " };
        let quote = if is_text { "\"" } else { "" };
        say(&format!("{before}{}: {quote}", json!(name)), Part::Arguments, out);
        self.n_arguments += 1;
        self.inside = Some(Inside { is_text, begun: false });
        *held = rest.to_owned();
        true
    }

    fn end(&self, out: &mut Vec<Part>) {
        say(if self.n_arguments == 0 { "{}" } else { "}" }, Part::Arguments, out);
    }

    /// No more text will come: a text goes out as far as it was written.
    pub(super) fn finish(&mut self, held: &str, out: &mut Vec<Part>) {
        if let Some(Inside { is_text: true, begun }) = self.inside {
            let text = if begun { held } else { held.strip_prefix('\n').unwrap_or(held) };
            say(&quoted(text), Part::Arguments, out);
        }
    }
}

/// Reads on in a value; whether it has ended.
fn value(inside: &mut Inside, held: &mut String, out: &mut Vec<Part>) -> bool {
    if !inside.begun {
        if held.is_empty() {
            return false;
        }
        if held.starts_with('\n') {
            held.remove(0);
        }
        inside.begun = true;
    }
    if let Some(end) = held.find(PARAMETER_END) {
        let text = held[..end].strip_suffix('\n').unwrap_or(&held[..end]);
        let said = if inside.is_text { format!("{}\"", quoted(text)) } else { guessed(text).to_string() };
        say(&said, Part::Arguments, out);
        held.drain(..end + PARAMETER_END.len());
        return true;
    }
    if inside.is_text {
        // The last line end may belong to the closing mark.
        let mut certain = held.len() - overlap(held, PARAMETER_END);
        certain -= usize::from(held[..certain].ends_with('\n'));
        say(&quoted(&held[..certain]), Part::Arguments, out);
        held.drain(..certain);
    }
    false
}

/// A text as it stands between the quotes of JSON.
fn quoted(text: &str) -> String {
    let json = json!(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// A value whose type nobody knows: JSON, a word of Python's, or a text.
fn guessed(text: &str) -> Value {
    let text = text.trim();
    match text {
        "True" => json!(true),
        "False" => json!(false),
        "None" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    }
}
