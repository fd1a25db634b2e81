//! Texts to run: synthetic ones that repeat themselves like real ones do, or any text with a recorded agreement.
//!
//! A synthetic text is written word by word: a fresh word, whose frequency follows Zipf's law and which often depends
//! on the word before, or a span copied from earlier. How much is copied from where makes the kind.

use protocol::Token;

/// Words of the synthetic language.
pub(crate) const N_VOCAB: u32 = 4096;

/// A prompt and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// For people.
    pub name: String,
    /// The prompt; at least one token.
    pub prompt: Vec<Token>,
    /// What the line answers; at least one token.
    pub answer: Vec<Token>,
    /// What the client expects, if it says so.
    pub prediction: Option<Vec<Token>>,
    /// Guesses by a source of this agreement instead of by the usual ones.
    pub agreement: Option<Agreement>,
}

/// A source of which only its agreement is known: each guess is right with the same probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// The probability, 0 to 1.
    pub right: f64,
    /// From this token of the answer on, another one.
    pub then: Option<(usize, f64)>,
    /// Whether asking costs something, as with a draft model: it is never scored on tokens for which it was not used.
    pub costs: bool,
    /// Decides which guesses are right.
    pub seed: u64,
}

/// A kind of synthetic text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The prompt's text once more.
    Copy,
    /// The prompt's text with some words changed.
    Edit,
    /// As `Edit`, with the prompt's text given as the expected answer.
    Predicted,
    /// Much that repeats itself in short spans.
    Code,
    /// Spans from a long prompt.
    Summary,
    /// Little that repeats.
    Chat,
    /// Nothing that repeats but by chance.
    Novel,
    /// The same keys again and again, with new values.
    Json,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Copy,
        Self::Edit,
        Self::Predicted,
        Self::Code,
        Self::Summary,
        Self::Chat,
        Self::Novel,
        Self::Json,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Edit => "edit",
            Self::Predicted => "predicted",
            Self::Code => "code",
            Self::Summary => "summary",
            Self::Chat => "chat",
            Self::Novel => "novel",
            Self::Json => "json",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A text of this kind with `n_answer` tokens.
    #[must_use]
    pub fn workload(self, seed: u64, n_answer: usize) -> Workload {
        let mut writer = Writer::new(seed ^ (self as u64) << 56);
        let mut prediction = None;
        match self {
            Self::Copy | Self::Edit | Self::Predicted => {
                writer.write(n_answer + 20, Habit { copied: 0.2, span: 4.0 });
                let source = writer.text[10..10 + n_answer].to_vec();
                let n_prompt = writer.text.len();
                for &token in &source {
                    let edited = self != Self::Copy && writer.chance(0.03);
                    let word = if edited { writer.fresh() } else { token };
                    writer.text.push(word);
                }
                if self == Self::Predicted {
                    prediction = Some(source);
                }
                Workload { prediction, ..writer.finish(self, n_prompt) }
            }
            Self::Json => {
                let keys: Vec<_> = (0..40).map(|_| writer.fresh()).collect();
                writer.write(60, Habit { copied: 0.0, span: 1.0 });
                let n_prompt = writer.text.len();
                while writer.text.len() < n_prompt + n_answer {
                    for field in keys.chunks(5) {
                        writer.text.extend(field);
                        let n = 1 + writer.below(3);
                        writer.write(n, Habit { copied: 0.3, span: 1.0 });
                    }
                }
                writer.text.truncate(n_prompt + n_answer);
                writer.finish(self, n_prompt)
            }
            Self::Code | Self::Summary | Self::Chat | Self::Novel => {
                let (n_prompt, habit) = match self {
                    Self::Code => (200, Habit { copied: 0.6, span: 10.0 }),
                    Self::Summary => (700, Habit { copied: 0.4, span: 6.0 }),
                    Self::Chat => (120, Habit { copied: 0.15, span: 4.0 }),
                    _ => (80, Habit { copied: 0.0, span: 1.0 }),
                };
                writer.write(n_prompt, Habit { copied: habit.copied / 2.0, ..habit });
                writer.write(n_answer, habit);
                writer.finish(self, n_prompt)
            }
        }
    }
}

impl Workload {
    /// A text of `n_answer` tokens whose guesses are right with probability `right`.
    #[must_use]
    pub fn agreeing(right: f64, seed: u64, n_answer: usize) -> Self {
        let agreement = Some(Agreement { right, then: None, costs: false, seed });
        Self { agreement, name: format!("{right:.2}"), ..Kind::Novel.workload(seed, n_answer) }
    }

    /// Tokens of the prompt and the answer.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.prompt.len() + self.answer.len()
    }
}

/// How a text goes on.
#[derive(Clone, Copy)]
struct Habit {
    /// Share of the words that are copied.
    copied: f64,
    /// Mean words in a copied span.
    span: f64,
}

struct Writer {
    random: u64,
    text: Vec<Token>,
}

impl Writer {
    const fn new(seed: u64) -> Self {
        Self { random: seed, text: Vec::new() }
    }

    fn write(&mut self, n: usize, habit: Habit) {
        let end = self.text.len() + n;
        // Spans begin so often that they hold their share of the words.
        let begin = habit.copied / (habit.copied + (1.0 - habit.copied) * habit.span.max(1.0));
        while self.text.len() < end {
            if self.text.len() > 8 && self.chance(begin) {
                let from = self.below(self.text.len() - 4);
                let mut at = from;
                loop {
                    self.text.push(self.text[at]);
                    at += 1;
                    if self.text.len() == end || self.chance(1.0 / habit.span) {
                        break;
                    }
                }
            } else {
                let word = self.fresh();
                self.text.push(word);
            }
        }
    }

    /// A word of its own: often the usual one after the word before, else any, the rarer the higher its number.
    fn fresh(&mut self) -> Token {
        let last = self.text.last().map_or(0, |token| u64::from(token.0.cast_unsigned()));
        let pick = if self.chance(0.3) { mix(last) } else { self.next() };
        let u = (pick >> 11) as f64 / (1_u64 << 53) as f64;
        Token((f64::from(N_VOCAB).powf(u) as i32 - 1).clamp(0, N_VOCAB as i32 - 1))
    }

    fn finish(self, kind: Kind, n_prompt: usize) -> Workload {
        let mut prompt = self.text;
        let answer = prompt.split_off(n_prompt);
        Workload { name: kind.name().into(), prompt, answer, prediction: None, agreement: None }
    }

    fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64 / (1_u64 << 53) as f64) < p
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    const fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
