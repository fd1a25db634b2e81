//! What calls of tools have to look like, as grammars: arguments follow the tool's schema.
//!
//! Does not know how calls are read again; `turn` does.

use protocol::{After, Grammar, GrammarKind};
use serde_json::{Map, Value, json};

use crate::Tokenizer;
use crate::tools::{ToolChoice, Tools};
use crate::turn::{CallForm, Piece};

/// Writes grammars of calls in one form over one vocabulary.
pub(crate) struct CallGrammar<'a> {
    pub tools: &'a Tools,
    pub form: CallForm,
    pub tokenizer: &'a dyn Tokenizer,
}

impl CallGrammar<'_> {
    /// What has to follow the beginning that the prompt makes of a call the client insists on (see [`Tools::opening`]).
    /// None without such a call.
    pub(crate) fn after_opening(&self) -> Option<Grammar> {
        let lark = match &self.tools.choice {
            ToolChoice::Auto | ToolChoice::None => return None,
            ToolChoice::Named(name) => format!("start: {}\n{}", self.rest(0), self.arguments(0, name, false)),
            ToolChoice::Required => {
                let calls =
                    self.each(|at, name| format!("{} {}", self.lark(&self.form.name(name)), self.rest(at)));
                format!("start: call\n{calls}{}", self.all_arguments(false))
            }
        };
        Some(Grammar::new(GrammarKind::Lark, lark))
    }

    /// An answer of this schema, or a call of any tool from its beginning on. None where the two begin with marks.
    pub(crate) fn answer_or_call(&self, schema: &str) -> Option<Grammar> {
        let schema: Value = serde_json::from_str(schema).ok()?;
        let calls = match (self.form.bare_key(), self.form.start()) {
            (Some(key), _) => self.each(|at, name| bare_call(at, name, key)),
            (None, Some(begin)) => {
                let begin = self.lark(&begin);
                self.each(|at, name| {
                    format!("{begin} {} {}", self.lark(&self.form.name(name)), self.rest(at))
                })
            }
            (None, None) => return None,
        };
        let arguments = self.all_arguments(false);
        let answer = compact(&schema, Layout::Tight, false);
        Some(Grammar::new(
            GrammarKind::Lark,
            format!("start: answer | call\n{calls}{arguments}answer: %json {answer}\n"),
        ))
    }

    /// What follows once the model begins a call by itself: calls, and nothing else. None for forms that do not mark where
    /// calls begin.
    pub(crate) fn once_begun(&self) -> Option<Grammar> {
        let lazy = self.form.lazy()?;
        let [first, next, close] = [&lazy.first, &lazy.next, &lazy.close].map(|pieces| self.lark(pieces));
        let more =
            if self.tools.parallel && !next.is_empty() { format!("({next} call)*") } else { String::new() };
        let close = if close.is_empty() { close } else { format!("({close})?") };
        let calls = self.each(|at, name| format!("{} {}", self.lark(&self.form.name(name)), self.rest(at)));
        let arguments = self.all_arguments(true);
        let lark = format!("start: {first} call {more} {close}\n{calls}{arguments}");
        let after = Some(After::may(lazy.mark));
        Some(Grammar { after, ..Grammar::new(GrammarKind::Lark, lark) })
    }

    /// The rule `call`: one of all tools, each as `one` writes it.
    fn each(&self, one: impl Fn(usize, &str) -> String) -> String {
        let calls: Vec<String> = self.tools.names().enumerate().map(|(at, name)| one(at, name)).collect();
        let starts: Vec<String> = (0..calls.len()).map(|at| format!("c{at}")).collect();
        let mut lark = format!("call: {}\n", starts.join(" | "));
        for (at, call) in calls.iter().enumerate() {
            lark.push_str(&format!("c{at}: {call}\n"));
        }
        lark
    }

    /// The arguments of tool `at`, and what ends a call behind them.
    fn rest(&self, at: usize) -> String {
        format!("a{at} {}", self.lark(self.form.end()))
    }

    fn all_arguments(&self, spaced: bool) -> String {
        self.tools.names().enumerate().map(|(at, name)| self.arguments(at, name, spaced)).collect()
    }

    /// The rule for the arguments of one tool; `spaced` if blanks may follow commas and colons, as models write them.
    fn arguments(&self, at: usize, name: &str, spaced: bool) -> String {
        let tool = self.tools.list.iter().find(|tool| tool["function"]["name"] == name);
        let schema = tool.map_or(&Value::Null, |tool| &tool["function"]["parameters"]);
        let layout = if spaced { Layout::Spaced } else { Layout::Tight };
        if self.form == CallForm::QwenXml {
            return xml_arguments(at, schema, layout);
        }
        format!("a{at}: %json {}\n", compact(schema, layout, true))
    }

    /// Pieces as Lark.
    fn lark(&self, pieces: &[Piece]) -> String {
        let words: Vec<String> = pieces.iter().map(|piece| self.piece(piece)).collect();
        words.join(" ")
    }

    fn piece(&self, piece: &Piece) -> String {
        match piece {
            Piece::Text(text) => json!(text).to_string(),
            Piece::Mark(mark) => self.mark(mark),
            Piece::MaybeMark(mark) => format!("{}?", self.mark(mark)),
            Piece::Blanks => "/[ \\n]{1,4}/?".to_owned(),
        }
    }

    /// A mark that is one token of the vocabulary is that token; else it is text.
    fn mark(&self, mark: &str) -> String {
        match self.tokenizer.tokenize(mark, false, true)[..] {
            [token] => format!("<[{}]>", token.0),
            _ => json!(mark).to_string(),
        }
    }
}

/// A call that is JSON and nothing else, where the answer may be JSON, too. It is cut into the words that JSON is read in:
/// a longer one would be waited for to its end, and no other object could begin like it.
fn bare_call(at: usize, name: &str, key: &str) -> String {
    let quoted = |text: &str| json!(json!(text).to_string()).to_string();
    let (name_key, name, key) = (quoted("name"), quoted(name), quoted(key));
    format!("\"{{\" {name_key} \":\" \" \"? {name} \",\" \" \"? {key} \":\" \" \"? a{at} \"}}\"")
}

/// How JSON is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Without blanks.
    Tight,
    /// A blank may follow each comma and colon.
    Spaced,
}

/// The arguments of a call in Qwen's XML: one element for each, in the order of the schema. Texts stand there as they are,
/// other values as JSON.
fn xml_arguments(at: usize, whole: &Value, layout: Layout) -> String {
    let properties = whole.get("properties").and_then(Value::as_object);
    let required: Vec<&str> = whole
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut all = Vec::new();
    let mut rules = String::new();
    for (i, (name, schema)) in properties.into_iter().flatten().enumerate() {
        let rule = format!("a{at}_{i}");
        all.push(if required.contains(&name.as_str()) { rule.clone() } else { format!("{rule}?") });
        let open = json!(format!("<parameter={name}>\n"));
        if is_text(schema) {
            rules.push_str(&format!(
                "{rule}: {open} {rule}_text\n{rule}_text[suffix=\"\\n</parameter>\\n\"]: {}\n",
                text_of(schema)
            ));
        } else {
            let value = compact_value(schema, whole, layout);
            rules.push_str(&format!(
                "{rule}: {open} {rule}_json \"\\n</parameter>\\n\"\n{rule}_json: %json {value}\n"
            ));
        }
    }
    let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") };
    format!("a{at}: {all}\n{rules}")
}

/// Whether values of this schema are texts, which XML shows as they are.
pub(crate) fn is_text(schema: &Value) -> bool {
    let texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    schema.get("type").is_some_and(|kind| kind == "string")
        || (schema.get("type").is_none() && schema.get("enum").is_some_and(texts))
}

/// A text of this schema as a regular expression: of its words only `enum` counts.
fn text_of(schema: &Value) -> String {
    match schema.get("enum").and_then(Value::as_array) {
        Some(list) => {
            let texts: Vec<String> = list.iter().filter_map(Value::as_str).map(escaped).collect();
            format!("/{}/", texts.join("|"))
        }
        None => "/(?s:.*)/".to_owned(),
    }
}

/// A text as a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c if c.is_ascii_punctuation() => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// The schema of a tool's arguments, laid out as JSON; `lenient` if what it says beyond the common words may be left out,
/// which tools' schemas often do.
fn compact(schema: &Value, layout: Layout, lenient: bool) -> Value {
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        _ => Map::from_iter([("type".to_owned(), json!("object"))]),
    };
    if schema.is_empty() || (lenient && !schema.contains_key("type") && !schema.contains_key("$ref")) {
        schema.insert("type".into(), json!("object"));
    }
    laid_out(schema, layout, lenient)
}

/// The same for one argument, which may be anything, and refer to what `whole` defines.
fn compact_value(schema: &Value, whole: &Value, layout: Layout) -> Value {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = whole.get(name) {
            schema.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    laid_out(schema, layout, true)
}

fn laid_out(mut schema: Map<String, Value>, layout: Layout, lenient: bool) -> Value {
    let mut guidance = json!({ "whitespace_flexible": false, "lenient": lenient });
    if layout == Layout::Spaced {
        guidance["item_separator"] = json!(", ?");
        guidance["key_separator"] = json!(": ?");
    }
    schema.insert("x-guidance".into(), guidance);
    let mut schema = Value::Object(schema);
    if lenient {
        leave_out_steps(&mut schema);
    }
    schema
}

/// Steps of numbers take long to read and matter little for a call.
fn leave_out_steps(schema: &mut Value) {
    let mut ahead = vec![schema];
    while let Some(value) = ahead.pop() {
        match value {
            Value::Object(map) => {
                if map.get("multipleOf").is_some_and(Value::is_number) {
                    map.remove("multipleOf");
                }
                ahead.extend(map.values_mut());
            }
            Value::Array(list) => ahead.extend(list),
            _ => {}
        }
    }
}
