//! How a token is chosen from logits: parameters only. The filters are implemented beside the engine.

use crate::Token;

/// Sampling parameters of one sequence. Names, units and neutral values are llama.cpp's.
/// [`SamplerParams::default`] is OpenAI's: temperature 1, everything else neutral.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerParams {
    /// Softmax temperature; 0 (or below) means the argmax, ties to the lowest id.
    pub temperature: f32,
    /// Half-width of the dynamic temperature range; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent of the entropy that steers the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep the smallest set with this total probability; 1 is off.
    pub top_p: f32,
    /// Keep tokens with at least this share of the top probability; 0 is off.
    pub min_p: f32,
    /// Locally typical sampling mass; 1 is off.
    pub typical_p: f32,
    /// Keep tokens within this many standard deviations of the top logit; below 0 is off.
    pub top_n_sigma: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted per occurrence among recent tokens; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once for a recent token; 0 is off.
    pub presence_penalty: f32,
    /// How many recent tokens count for the penalties; 0 is off, -1 is the whole context.
    pub penalty_last_n: i32,
    /// Added to these tokens' logits before anything else; `f32::NEG_INFINITY` forbids.
    pub logit_bias: Vec<(Token, f32)>,
    /// Penalty for continuing a repeated sequence.
    pub dry: DryParams,
    /// Removal of the most likely of several viable tokens.
    pub xtc: XtcParams,
    /// Mirostat; replaces top_k, top_p, min_p, typical_p, top_n_sigma and XTC when set.
    pub mirostat: Option<Mirostat>,
    /// Keep at least this many candidates in top_p, min_p, typical_p and XTC.
    pub min_keep: u32,
    /// What the answer may be; tokens that cannot lead there are never chosen.
    pub grammar: Option<Grammar>,
}

/// A language that an answer has to be in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grammar {
    /// How the text is read.
    pub kind: GrammarKind,
    /// At most [`crate::limits::MAX_GRAMMAR_BYTES`] bytes.
    pub text: String,
    /// What the answer has to say before anything is asked of it; else the grammar is that of the whole answer.
    pub after: Option<After>,
    /// What the answer has said already, in a sequence that goes on from an interrupted one; else nothing.
    pub said: Vec<Token>,
}

impl Grammar {
    /// A grammar for the whole answer.
    #[must_use]
    pub fn new(kind: GrammarKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), after: None, said: Vec::new() }
    }
}

/// A text behind which a grammar begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct After {
    /// At most [`crate::limits::MAX_TEXT`] bytes.
    pub text: String,
    /// Whether the answer may also end without it, as one may that calls no tool. If not, it has to come, as the end of
    /// reasoning has.
    pub may_end: bool,
}

impl After {
    /// A text that has to come.
    #[must_use]
    pub fn must(text: impl Into<String>) -> Self {
        Self { text: text.into(), may_end: false }
    }

    /// A text that may come.
    #[must_use]
    pub fn may(text: impl Into<String>) -> Self {
        Self { text: text.into(), may_end: true }
    }
}

/// How a grammar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrammarKind {
    /// A JSON schema; answers are JSON without white space between its parts.
    JsonSchema,
    /// A regular expression that the whole answer matches (Rust's syntax).
    Regex,
    /// llguidance's variant of Lark.
    Lark,
    /// llama.cpp's GBNF.
    Gbnf,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            logit_bias: Vec::new(),
            dry: DryParams::default(),
            xtc: XtcParams::default(),
            mirostat: None,
            min_keep: 0,
            grammar: None,
        }
    }
}

/// DRY ("don't repeat yourself"): the penalty is `multiplier * base^(length - allowed_length)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DryParams {
    /// 0 is off.
    pub multiplier: f32,
    /// Growth of the penalty per repeated token.
    pub base: f32,
    /// Repetitions up to this length are free.
    pub allowed_length: i32,
    /// How far back to look; 0 is off, -1 is the whole context.
    pub penalty_last_n: i32,
    /// Texts that end a repetition.
    pub sequence_breakers: Vec<String>,
}

impl Default for DryParams {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            penalty_last_n: -1,
            sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
        }
    }
}

/// XTC ("exclude top choices").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XtcParams {
    /// Chance per token that it applies; 0 is off.
    pub probability: f32,
    /// Tokens at least this likely are candidates for removal, the least likely of them stays; above 0.5 is off.
    pub threshold: f32,
}

impl Default for XtcParams {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

/// Mirostat: keeps the surprise near a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// 1 or 2.
    pub version: u8,
    /// Target surprise in bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
    /// State to start from: `2 * tau` for a new sequence, the last verdict's value after a replay.
    pub mu: f32,
}
