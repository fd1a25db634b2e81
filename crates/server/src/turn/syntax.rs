//! How models write reasoning and calls, recognised by their chat templates.

use std::borrow::Cow;

/// The marks that a model's turn may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Syntax {
    /// Around reasoning.
    pub thinking: Option<(&'static str, &'static str)>,
    pub calls: CallForm,
}

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallForm {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen, and models that are told to.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder.
    QwenXml,
    /// `{"name": …, "parameters": …}` as the whole answer.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}` if `named`.
    Mistral { named: bool },
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name` and fenced JSON, or name and JSON alone if not `fenced`.
    DeepSeek { fenced: bool },
    /// gpt-oss.
    Harmony,
    /// `{"name": …, "arguments": …}` as the whole answer, or a list of them.
    Json,
}

/// Whether text begins with the name of a tool, in a form that writes names outside of the JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    No,
    /// It takes more text to tell.
    Perhaps,
    /// `len` bytes come before the arguments.
    Yes {
        name: &'a str,
        len: usize,
    },
}

/// A part of what a model writes around a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(Cow<'static, str>),
    /// Often a special token.
    Mark(&'static str),
    MaybeMark(&'static str),
    /// A few blanks and line ends, or none.
    Blanks,
}

const fn text(text: &'static str) -> Piece {
    Piece::Text(Cow::Borrowed(text))
}

/// How calls look that a model begins by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lazy {
    /// It says this, and a call follows.
    pub mark: &'static str,
    /// Between the mark and the name of the first call.
    pub first: Vec<Piece>,
    /// Between the end of a call and the name of the next; nothing where there is none.
    pub next: Vec<Piece>,
    /// Behind the last call.
    pub close: Vec<Piece>,
}

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const CALL_SEP: &str = "<｜tool▁sep｜>";
/// A call that is JSON, up to the name.
const OBJECT: &str = "{\"name\": \"";
const TOOL_CALL: &str = "<tool_call>";
const TOOL_CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
/// Bytes of a tool's name at most, with what comes around it.
const MAX_HEADER: usize = 256;

impl Syntax {
    /// The syntax of models with this template. `knows_tools` if it writes tools into the prompt.
    pub(crate) fn of_template(source: &str, knows_tools: bool) -> Self {
        let has = |text: &str| source.contains(text);
        let thinking = if has("</think>") {
            Some(("<think>", "</think>"))
        } else if has("[THINK]") {
            Some(("[THINK]", "[/THINK]"))
        } else {
            None
        };
        let calls = if has("<|channel|>") {
            CallForm::Harmony
        } else if !knows_tools {
            CallForm::Hermes
        } else if has(CALL_BEGIN) || has(CALLS_BEGIN) {
            CallForm::DeepSeek { fenced: has("```json") }
        } else if has("[TOOL_CALLS]") {
            CallForm::Mistral { named: has("[ARGS]") }
        } else if has(FUNCTION) && has("<parameter=") {
            CallForm::QwenXml
        } else if has(TOOL_CALL) {
            CallForm::Hermes
        } else if has("<|python_tag|>") || (has("ipython") && has("<|start_header_id|>")) {
            CallForm::Llama3
        } else {
            CallForm::Json
        };
        Self { thinking, calls }
    }

    /// Marks that may be tokens of their own, without text unless asked for.
    pub(crate) fn marks(&self) -> Vec<&'static str> {
        let mut marks = match self.calls {
            CallForm::Hermes | CallForm::QwenXml => vec![TOOL_CALL, TOOL_CALL_END],
            CallForm::Llama3 => vec!["<|python_tag|>"],
            CallForm::Mistral { .. } => vec!["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            CallForm::DeepSeek { .. } => vec![CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, CALL_SEP],
            CallForm::Harmony => {
                vec!["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>"]
            }
            CallForm::Json => Vec::new(),
        };
        if let Some((open, close)) = self.thinking {
            marks.extend([open, close]);
        }
        marks
    }
}

impl CallForm {
    /// Calls have no mark of their own, so only the whole answer can be one, and only of a tool that exists.
    pub(super) const fn is_bare(self) -> bool {
        matches!(self, Self::Llama3 | Self::Json)
    }

    /// What turns text into calls.
    pub(super) const fn openers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::QwenXml => &[TOOL_CALL],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral { .. } => &["[TOOL_CALLS]"],
            Self::DeepSeek { .. } => &[CALLS_BEGIN, CALL_BEGIN],
            Self::Harmony | Self::Json => &[],
        }
    }

    /// What may stand around calls.
    pub(super) const fn fillers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[TOOL_CALL, TOOL_CALL_END, "[", "]", ","],
            Self::QwenXml => &[TOOL_CALL, TOOL_CALL_END],
            Self::Llama3 => &["<|python_tag|>", ";", "[", "]", ","],
            Self::Mistral { .. } => &["[TOOL_CALLS]", "[", "]", ","],
            Self::DeepSeek { .. } => &[CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, "```"],
            Self::Harmony => &[],
            Self::Json => &["[", "]", ","],
        }
    }

    pub(super) fn named(self, said: &str) -> Named<'_> {
        let found = match self {
            Self::Mistral { .. } => {
                let Some(start) = said.find('{') else { return Self::name_to_come(said) };
                let header = &said[..start];
                let end = ["[ARGS]", "[CALL_ID]"].iter().filter_map(|mark| header.find(mark)).min();
                Some((header[..end.unwrap_or(start)].trim(), start))
            }
            Self::DeepSeek { .. } => {
                let Some(start) = said.find('{') else { return Self::name_to_come(said) };
                said[..start].split_once(CALL_SEP).map(|(before, after)| {
                    let after = after.trim().trim_end_matches("```json").trim();
                    (if after.is_empty() { before.trim() } else { after }, start)
                })
            }
            Self::QwenXml => match said.strip_prefix(FUNCTION) {
                Some(rest) => match rest.find('>') {
                    Some(end) => Some((rest[..end].trim(), FUNCTION.len() + end + 1)),
                    None => return Self::name_to_come(said),
                },
                None if FUNCTION.starts_with(said) => return Named::Perhaps,
                None => None,
            },
            Self::Hermes | Self::Llama3 | Self::Harmony | Self::Json => None,
        };
        match found {
            Some((name, len)) if is_name(name) => Named::Yes { name, len },
            _ => Named::No,
        }
    }

    fn name_to_come(said: &str) -> Named<'_> {
        if said.len() < MAX_HEADER { Named::Perhaps } else { Named::No }
    }

    /// From the name of a call to its arguments.
    pub(crate) fn name(self, name: &str) -> Vec<Piece> {
        let said = |after: &str| Piece::Text(format!("{name}{after}").into());
        match self {
            Self::Hermes | Self::Json | Self::Mistral { named: false } => vec![said("\", \"arguments\": ")],
            Self::Llama3 => vec![said("\", \"parameters\": ")],
            Self::Mistral { named: true } => vec![said(""), Piece::Mark("[ARGS]")],
            Self::DeepSeek { fenced: true } => vec![said("\n```json\n")],
            Self::DeepSeek { fenced: false } => vec![said(""), Piece::Mark(CALL_SEP)],
            Self::Harmony => {
                vec![said(" "), Piece::Mark("<|constrain|>"), text("json"), Piece::Mark("<|message|>")]
            }
            Self::QwenXml => vec![said(">\n")],
        }
    }

    /// Behind the arguments of a call; without it the call is not whole.
    pub(crate) const fn end(self) -> &'static [Piece] {
        match self {
            Self::Hermes | Self::Llama3 | Self::Json | Self::Mistral { named: false } => {
                const { &[text("}")] }
            }
            Self::QwenXml => const { &[text("</function>")] },
            Self::Mistral { named: true } | Self::DeepSeek { .. } | Self::Harmony => &[],
        }
    }

    /// How calls look that the model begins by itself; none if it does not mark where they begin.
    pub(crate) fn lazy(self) -> Option<Lazy> {
        use Piece::{Blanks, Mark, MaybeMark};
        let marked = |object: &'static str| Lazy {
            mark: TOOL_CALL,
            first: vec![Blanks, text(object)],
            next: vec![Blanks, Mark(TOOL_CALL_END), Blanks, Mark(TOOL_CALL), Blanks, text(object)],
            close: vec![Blanks, Mark(TOOL_CALL_END)],
        };
        let deep_seek = |between: Vec<Piece>, after: &[Piece]| {
            let end = [after, &[Mark(CALL_END)]].concat();
            Lazy {
                mark: CALL_BEGIN,
                next: [end.clone(), vec![Blanks, Mark(CALL_BEGIN)], between.clone()].concat(),
                first: between,
                close: [end, vec![Blanks, MaybeMark(CALLS_END)]].concat(),
            }
        };
        Some(match self {
            Self::Hermes => marked(OBJECT),
            Self::QwenXml => marked(FUNCTION),
            Self::Llama3 => Lazy {
                mark: "<|python_tag|>",
                first: vec![text(OBJECT)],
                next: vec![text("; "), text(OBJECT)],
                close: Vec::new(),
            },
            Self::Mistral { named: false } => Lazy {
                mark: "[TOOL_CALLS]",
                first: vec![Blanks, text("["), text(OBJECT)],
                next: vec![text(", "), text(OBJECT)],
                close: vec![text("]")],
            },
            Self::Mistral { named: true } => Lazy {
                mark: "[TOOL_CALLS]",
                first: Vec::new(),
                next: vec![Mark("[TOOL_CALLS]")],
                close: Vec::new(),
            },
            Self::DeepSeek { fenced: true } => {
                deep_seek(vec![text("function"), Mark(CALL_SEP)], &[text("\n```")])
            }
            Self::DeepSeek { fenced: false } => deep_seek(Vec::new(), &[]),
            Self::Harmony => Lazy {
                mark: "<|channel|>commentary to=functions.",
                first: Vec::new(),
                next: Vec::new(),
                close: Vec::new(),
            },
            Self::Json => return None,
        })
    }

    /// Under which name calls that are JSON and nothing else have their arguments; Llama 3 may leave out its mark.
    pub(crate) const fn bare_key(self) -> Option<&'static str> {
        match self {
            Self::Llama3 => Some("parameters"),
            Self::Json => Some("arguments"),
            _ => None,
        }
    }

    /// Before the name of a tool, in an answer that may also be something else. None where no mark tells them apart: for bare
    /// calls, and for gpt-oss, whose answers begin with a mark, too.
    pub(crate) fn start(self) -> Option<Vec<Piece>> {
        if self.is_bare() || self == Self::Harmony {
            return None;
        }
        self.lazy().map(|lazy| [vec![Piece::Mark(lazy.mark)], lazy.first].concat())
    }

    /// The beginning of a call, of a certain tool or of any: a model that is made to begin so has to go on with it.
    pub(crate) fn opening(self, name: Option<&str>) -> String {
        let object = |key: &str| match name {
            Some(name) => format!("{{\"name\": \"{name}\", \"{key}\": "),
            None => OBJECT.into(),
        };
        let name = name.unwrap_or_default();
        let then = |text: &'static str| if name.is_empty() { "" } else { text };
        match self {
            Self::Hermes => format!("{TOOL_CALL}\n{}", object("arguments")),
            Self::QwenXml => format!("{TOOL_CALL}\n{FUNCTION}{name}{}", then(">\n")),
            Self::Llama3 => object("parameters"),
            Self::Json => object("arguments"),
            Self::Mistral { named: true } => format!("[TOOL_CALLS]{name}{}", then("[ARGS]")),
            Self::Mistral { named: false } => format!("[TOOL_CALLS][{}", object("arguments")),
            Self::DeepSeek { fenced: true } => {
                format!("{CALLS_BEGIN}{CALL_BEGIN}function{CALL_SEP}{name}{}", then("\n```json\n"))
            }
            Self::DeepSeek { fenced: false } => {
                format!("{CALLS_BEGIN}{CALL_BEGIN}{name}{}", then(CALL_SEP))
            }
            Self::Harmony => {
                let rest = then(" <|constrain|>json<|message|>");
                format!("<|channel|>commentary to=functions.{name}{rest}")
            }
        }
    }

    /// The id of call `n`. Mistral's templates take only ids of nine letters and digits.
    pub(super) fn call_id(self, base: &str, n: usize) -> String {
        match self {
            Self::Mistral { .. } => format!("{}{n:02}", &base[..7]),
            _ => format!("call_{}{n:02}", &base[..22]),
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_HEADER
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}
