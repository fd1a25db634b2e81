//! What a model says in its turn, taken apart: reasoning, text, and calls of tools.
//!
//! Text comes in pieces, cut anywhere; parts go out as early as they are certain. Does not know about tokens, requests
//! or clients. What looks like a call and turns out not to be one is text.

mod harmony;
mod object;
mod syntax;
mod xml;

use std::collections::BTreeMap;

pub(crate) use syntax::{CallForm, Piece, Syntax};

use crate::stop::overlap;
use harmony::Harmony;
use object::{Fed, ObjectScan};
use xml::XmlScan;

/// One part of a turn. Text of the same kind may come in any number of parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    /// A call begins.
    Call {
        id: String,
        name: String,
    },
    /// JSON of the last call's arguments.
    Arguments(String),
}

/// How to read a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// Absent for text that is only text.
    pub syntax: Option<Syntax>,
    /// Names of the tools that the model may call; none: nothing is a call.
    pub tools: Vec<String>,
    /// By tool, the arguments that are texts: where a model writes them without quotes.
    pub texts: BTreeMap<String, Vec<String>>,
    /// The prompt ended inside the model's reasoning.
    pub thinking: bool,
    /// At most one call.
    pub single: bool,
    /// What the prompt said already on the model's behalf: the beginning of a call.
    pub opening: String,
}

/// A turn in the making.
#[derive(Debug)]
pub(crate) struct Turn {
    state: State,
    calls: Calls,
    thinking: Option<(&'static str, &'static str)>,
    /// Text that is not certain yet.
    held: String,
}

#[derive(Debug)]
enum State {
    /// All is text.
    Plain,
    /// Nothing has been said.
    Start,
    /// `begun` once any reasoning went out.
    Thinking {
        begun: bool,
    },
    /// Reasoning is over; blanks before the answer do not count.
    Thought,
    /// `begun` once any text went out.
    Text {
        begun: bool,
    },
    /// Where a call may begin; `marker` holds what introduced it, until one does.
    Between {
        marker: String,
    },
    Object(Box<ObjectScan>),
    Xml(XmlScan),
    /// gpt-oss has a syntax of its own for everything.
    Harmony(Harmony),
}

/// The calls of a turn.
#[derive(Debug)]
struct Calls {
    form: CallForm,
    tools: Vec<String>,
    texts: BTreeMap<String, Vec<String>>,
    single: bool,
    /// Where ids come from.
    base: String,
    n: usize,
    /// A second call began although one was asked for.
    over: bool,
}

impl Calls {
    /// Begins a call, unless there are enough of them.
    fn begin(&mut self, name: &str, out: &mut Vec<Part>) -> bool {
        if self.over || (self.single && self.n > 0) {
            self.over = true;
            return false;
        }
        let id = self.form.call_id(&self.base, self.n);
        self.n += 1;
        out.push(Part::Call { id, name: name.to_owned() });
        true
    }

    fn allows(&self, name: &str) -> bool {
        !self.form.is_bare() || self.tools.iter().any(|tool| tool == name)
    }
}

impl Turn {
    /// A turn that is read so. Ids of calls are made from `base`, at least 22 letters and digits. Also gives the parts
    /// of what the prompt said already.
    pub(crate) fn new(reading: &Reading, base: String) -> (Self, Vec<Part>) {
        let syntax = reading.syntax.as_ref();
        let calls = Calls {
            form: syntax.map_or(CallForm::Hermes, |syntax| syntax.calls),
            tools: reading.tools.clone(),
            texts: reading.texts.clone(),
            single: reading.single,
            base,
            n: 0,
            over: false,
        };
        let state = match syntax {
            None => State::Plain,
            Some(Syntax { calls: CallForm::Harmony, .. }) => State::Harmony(Harmony::default()),
            Some(_) if reading.thinking => State::Thinking { begun: false },
            Some(_) => State::Start,
        };
        let thinking = syntax.and_then(|syntax| syntax.thinking);
        let mut turn = Self { state, calls, thinking, held: String::new() };
        let mut parts = Vec::new();
        turn.push(&reading.opening, &mut parts);
        (turn, parts)
    }

    /// Takes text; appends the parts that are certain.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        if matches!(self.state, State::Plain) {
            return say(text, Part::Text, out);
        }
        self.held.push_str(text);
        while !self.calls.over && self.step(out) {}
    }

    /// No more text will come: appends what was held back.
    pub(crate) fn finish(&mut self, out: &mut Vec<Part>) {
        let mut held = std::mem::take(&mut self.held);
        if self.calls.over {
            return;
        }
        match &mut self.state {
            State::Plain => {}
            State::Thinking { .. } => say(held.trim_end(), Part::Reasoning, out),
            State::Start | State::Text { .. } => say(&held, Part::Text, out),
            State::Thought => say(held.trim_start(), Part::Text, out),
            State::Between { marker } => {
                held.insert_str(0, marker);
                say(held.trim_end(), Part::Text, out);
            }
            State::Object(scan) => say(&scan.uncertain(), Part::Text, out),
            State::Xml(scan) => scan.finish(&held, out),
            State::Harmony(harmony) => harmony.finish(&held, out),
        }
    }

    /// Calls begun so far.
    pub(crate) const fn n_calls(&self) -> usize {
        self.calls.n
    }

    /// The last call is not whole yet.
    pub(crate) const fn is_in_call(&self) -> bool {
        match &self.state {
            State::Object(scan) => scan.is_begun(),
            State::Xml(_) | State::Harmony(Harmony::Arguments) => true,
            _ => false,
        }
    }

    /// The model reasons.
    pub(crate) const fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Thinking { .. } | State::Harmony(Harmony::Reasoning))
    }

    /// Nothing more that is said matters.
    pub(crate) const fn is_over(&self) -> bool {
        self.calls.over
    }

    /// Does what the held text allows; false if it takes more text to go on.
    fn step(&mut self, out: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Plain => false,
            State::Start => self.start(),
            State::Thinking { begun } => {
                let begun = *begun;
                self.think(begun, out)
            }
            State::Thought => {
                let blanks = self.held.len() - self.held.trim_start().len();
                self.held.drain(..blanks);
                let begun = !self.held.is_empty();
                if begun {
                    self.state = State::Text { begun: false };
                }
                begun
            }
            State::Text { begun } => {
                let begun = *begun;
                self.text(begun, out)
            }
            State::Between { .. } => self.between(out),
            State::Object(_) => self.object(out),
            State::Xml(scan) => {
                let ended = scan.step(&mut self.held, out);
                if ended {
                    self.state = State::Between { marker: String::new() };
                }
                ended
            }
            State::Harmony(harmony) => harmony.step(&mut self.held, &mut self.calls, out),
        }
    }

    fn start(&mut self) -> bool {
        if let Some((open, _)) = self.thinking {
            let said = self.held.trim_start();
            if said.len() < open.len() && open.starts_with(said) {
                return false;
            }
            if let Some(rest) = said.strip_prefix(open) {
                self.held = rest.to_owned();
                self.state = State::Thinking { begun: false };
                return true;
            }
        }
        self.state = State::Text { begun: false };
        true
    }

    fn think(&mut self, begun: bool, out: &mut Vec<Part>) -> bool {
        let Some((_, close)) = self.thinking else {
            self.state = State::Text { begun: false };
            return true;
        };
        if !begun {
            self.held = self.held.trim_start().to_owned();
        }
        if let Some(end) = self.held.find(close) {
            say(self.held[..end].trim_end(), Part::Reasoning, out);
            self.held.drain(..end + close.len());
            self.state = State::Thought;
            return true;
        }
        let certain = certain(&self.held, &[close]);
        say(&self.held[..certain], Part::Reasoning, out);
        self.held.drain(..certain);
        self.state = State::Thinking { begun: begun || certain > 0 };
        false
    }

    fn text(&mut self, begun: bool, out: &mut Vec<Part>) -> bool {
        if self.calls.tools.is_empty() {
            let any = !self.held.is_empty();
            say(&std::mem::take(&mut self.held), Part::Text, out);
            self.state = State::Text { begun: begun || any };
            return false;
        }
        let said = self.held.trim_start();
        if !begun && said.is_empty() {
            return false;
        }
        if !begun && self.calls.form.is_bare() && said.starts_with(['{', '[']) {
            self.held = said.to_owned();
            self.state = State::Between { marker: String::new() };
            return true;
        }
        let markers = self.calls.form.openers();
        let found = markers.iter().filter_map(|marker| Some((self.held.find(marker)?, *marker))).min();
        if let Some((start, marker)) = found {
            let text = self.held[..start].trim_end().len();
            say(&self.held[..text], Part::Text, out);
            let marker = self.held[text..start + marker.len()].to_owned();
            self.held.drain(..text + marker.len());
            self.state = State::Between { marker };
            return true;
        }
        let certain = certain(&self.held, markers);
        say(&self.held[..certain], Part::Text, out);
        self.held.drain(..certain);
        self.state = State::Text { begun: begun || certain > 0 };
        false
    }

    /// Before, between and after calls.
    fn between(&mut self, out: &mut Vec<Part>) -> bool {
        let said = self.held.trim_start();
        if said.is_empty() {
            return false;
        }
        if said.starts_with('{') {
            self.held = said.to_owned();
            self.state = State::Object(Box::default());
            return true;
        }
        let fillers = self.calls.form.fillers();
        if fillers.iter().any(|filler| filler.len() > said.len() && filler.starts_with(said)) {
            return false;
        }
        if let Some(filler) = fillers.iter().find(|filler| said.starts_with(**filler)) {
            let rest = said[filler.len()..].to_owned();
            // After a call brackets and commas belong to its list; before any they may turn out to be text.
            if let State::Between { marker } = &mut self.state
                && (self.calls.n == 0 || self.calls.form.openers().contains(filler))
            {
                marker.push_str(filler);
            }
            self.held = rest;
            return true;
        }
        match self.calls.form.named(said) {
            syntax::Named::No => self.no_call(out),
            syntax::Named::Perhaps => false,
            syntax::Named::Yes { name, len } if self.calls.form == CallForm::QwenXml => {
                let name = name.to_owned();
                let texts = self.calls.texts.get(&name).cloned().unwrap_or_default();
                self.held = said[len..].to_owned();
                self.state = State::Xml(XmlScan::new(texts));
                self.calls.begin(&name, out)
            }
            syntax::Named::Yes { name, len } => {
                let scan = ObjectScan::of_arguments(name.to_owned());
                self.held = said[len..].to_owned();
                self.state = State::Object(Box::new(scan));
                true
            }
        }
    }

    /// What looked like a call is text.
    fn no_call(&mut self, out: &mut Vec<Part>) -> bool {
        if let State::Between { marker } = &mut self.state {
            let marker = std::mem::take(marker);
            say(&marker, Part::Text, out);
        }
        self.state = State::Text { begun: true };
        true
    }

    fn object(&mut self, out: &mut Vec<Part>) -> bool {
        let State::Object(scan) = &mut self.state else { return false };
        let mut end = None;
        for (at, c) in self.held.char_indices() {
            if scan.feed(c) == Fed::End {
                end = Some(at + c.len_utf8());
                break;
            }
        }
        let bare = self.calls.form.is_bare();
        let mut is_call = scan.is_begun();
        if !is_call
            && let Some(name) = scan.name_of_call(end.is_some() && !bare)
            && self.calls.allows(&name)
        {
            scan.begin();
            is_call = true;
            if !self.calls.begin(&name, out) {
                return false;
            }
        }
        if is_call {
            let arguments = scan.take_arguments(end.is_some());
            say(&arguments, Part::Arguments, out);
        }
        let Some(end) = end else {
            self.held.clear();
            return false;
        };
        self.held.drain(..end);
        if is_call {
            self.state = State::Between { marker: String::new() };
        } else {
            say(&scan.uncertain(), Part::Text, out);
            self.state = State::Text { begun: true };
        }
        true
    }
}

/// Appends a part, unless it is empty; joins it to one of its kind.
fn say(text: &str, part: fn(String) -> Part, out: &mut Vec<Part>) {
    if text.is_empty() {
        return;
    }
    match (out.last_mut(), part(text.to_owned())) {
        (Some(Part::Text(said)), Part::Text(_))
        | (Some(Part::Reasoning(said)), Part::Reasoning(_))
        | (Some(Part::Arguments(said)), Part::Arguments(_)) => said.push_str(text),
        (_, new) => out.push(new),
    }
}

/// Bytes of `text` that are neither the beginning of a marker nor blanks that one may follow.
fn certain(text: &str, markers: &[&str]) -> usize {
    let keep = markers.iter().map(|marker| overlap(text, marker)).max().unwrap_or(0);
    text[..text.len() - keep].trim_end().len()
}

#[cfg(test)]
mod tests;
