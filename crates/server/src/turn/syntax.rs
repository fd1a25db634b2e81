//! How models write reasoning and calls, recognised by their chat templates.

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

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const CALL_SEP: &str = "<｜tool▁sep｜>";
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
        } else if has("<tool_call>") {
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
            CallForm::Hermes => vec!["<tool_call>", "</tool_call>"],
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
            Self::Hermes => &["<tool_call>"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral { .. } => &["[TOOL_CALLS]"],
            Self::DeepSeek { .. } => &[CALLS_BEGIN, CALL_BEGIN],
            Self::Harmony | Self::Json => &[],
        }
    }

    /// What may stand around calls.
    pub(super) const fn fillers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>", "[", "]", ","],
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

    /// Under which name a call's JSON has the arguments, in forms where the whole call is JSON.
    pub(crate) const fn arguments_key(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Json | Self::Mistral { named: false } => Some("arguments"),
            Self::Llama3 => Some("parameters"),
            Self::Mistral { named: true } | Self::DeepSeek { .. } | Self::Harmony => None,
        }
    }

    /// The beginning of a call, of a certain tool or of any: a model that is made to begin so has to go on with it.
    pub(crate) fn opening(self, name: Option<&str>) -> String {
        let object = |key: &str| match name {
            Some(name) => format!("{{\"name\": \"{name}\", \"{key}\": "),
            None => "{\"name\": \"".into(),
        };
        let name = name.unwrap_or_default();
        let then = |text: &'static str| if name.is_empty() { "" } else { text };
        match self {
            Self::Hermes => format!("<tool_call>\n{}", object("arguments")),
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
