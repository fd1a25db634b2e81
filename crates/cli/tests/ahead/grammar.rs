//! Answers in a given form: however guesses are made, and however badly, the text is the plain one and in that form.

use std::sync::Arc;

use grammar::{Forced, Grammars};
use llama::{EngineConfig, LlamaEngine, Vocab};
use protocol::{After, Grammar, GrammarKind, SamplerParams, Token};
use scheduler::Request;
use serde_json::Value;
use spec::{Answer, Ask, Block, Prior, Proposer, RUNS};

use crate::line::{self, Heard, Line, assert_plain, cut, engine, free, pinned};
use crate::plain;
use crate::real::{SMOLLM2, model};

/// Schemas with something to ask, shared with the tests over HTTP.
const SCHEMAS: &str = include_str!("../../../../tests/e2e/schemas.json");
/// Of those, what the usual run takes.
const SHARE: [&str; 5] = ["nested", "anyOf objects", "recursion", "unicode", "optional"];

/// Says again and again what grammars do not want: fences, line ends, blanks. It comes before the others, and now and
/// then it leaves the word to them.
#[derive(Debug)]
struct Messy {
    tokens: Vec<Token>,
}

impl Messy {
    /// Tokens for which it speaks, and then does not.
    const TURN: usize = 6;
}

impl Proposer for Messy {
    fn name(&self) -> &'static str {
        "messy"
    }

    fn prior(&self) -> Prior {
        [0.1; RUNS.len() + 1]
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        if ask.tokens.len() / Self::TURN % 2 == 1 {
            return Answer::Nothing;
        }
        let start = ask.tokens.len() % self.tokens.len();
        let tokens = self.tokens.iter().cycle().skip(start).take(n).copied().collect();
        Answer::Guesses(Block { tokens, run: 9, probabilities: Vec::new() })
    }
}

/// What guesses beside the line's own sources. Where `forced` is, it cuts what others guess to what the grammar allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Forced,
    Messy,
    Both,
}

struct Bench {
    line: Line,
    alone: LlamaEngine,
    vocab: Vocab,
    grammars: Grammars,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = model(SMOLLM2);
        let config =
            EngineConfig { context: 512, n_slots: 2, max_rows: 64, exact: true, ..EngineConfig::new("") };
        let vocab = Vocab::load(&path).expect("it has a tokenizer");
        Self {
            line: Line::load(&cut(&path, &[15], folder.path()), &config),
            alone: engine(&path, &EngineConfig { n_slots: 1, ..config }),
            grammars: Grammars::new(Arc::new(vocab.clone())).expect("its vocabulary is usable"),
            vocab,
            _folder: folder,
        }
    }

    fn request(&self, ask: &str, grammar: Grammar, temperature: f32, max_tokens: u32) -> Request {
        let prompt = format!("<|im_start|>user\n{ask} Answer in JSON.<|im_end|>\n<|im_start|>assistant\n");
        Request {
            sampler: SamplerParams { temperature, grammar: Some(grammar), ..SamplerParams::default() },
            seed: 7,
            max_tokens: Some(max_tokens),
            top_logprobs: Some(1),
            ..Request::new(self.vocab.tokenize(&prompt, true, true).expect("a short text"))
        }
    }

    /// The request with these sources of its own.
    fn ask(&self, request: &Request, sources: Own) -> line::Ask {
        let mut own: Vec<Box<dyn Proposer>> = Vec::new();
        if sources != Own::Forced {
            let text = "```json\n{\n  \"\n\n```\n } ]";
            let tokens = self.vocab.tokenize(text, false, false).expect("a short text");
            own.push(Box::new(Messy { tokens }));
        }
        if sources != Own::Messy {
            let grammar = request.sampler.grammar.as_ref().expect("every request here has one");
            let constraint = self.grammars.start(grammar).expect("the grammar is usable");
            own.push(Box::new(Forced::new(constraint)));
        }
        line::Ask { request: request.clone(), own }
    }

    /// The text of an answer, without the token that ended it.
    fn text(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        tokens.iter().for_each(|&token| self.vocab.append_bytes(token, false, &mut bytes));
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    /// The plain answer's text, after every way to guess has given the same.
    fn check(&mut self, request: &Request, what: &str) -> (String, Vec<(Own, Heard)>) {
        let expected = plain::answer(&mut self.alone, request);
        let mut ways = vec![
            (pinned("suffix", 4, 2), Own::Forced),
            (pinned("suffix", 2, 4), Own::Both),
            (pinned("suffix", 3, 2), Own::Messy),
        ];
        if soak() {
            ways.extend([
                (free("suffix"), Own::Forced),
                (free("auto"), Own::Both),
                (pinned("suffix", 1, 8), Own::Both),
            ]);
        }
        let mut all = Vec::new();
        for (speculate, own) in ways {
            let ask = self.ask(request, own);
            let heard = self.line.answer(&speculate, [ask]).pop().expect("one request, one answer");
            assert_plain(&heard.answer, &expected, &format!("{what}, {speculate:?}, {own:?}"));
            all.push((own, heard));
        }
        (self.text(&expected.tokens), all)
    }
}

/// Without what stands inside of strings.
fn outside_of_strings(json: &str) -> String {
    let (mut out, mut inside, mut escaped) = (String::new(), false, false);
    for c in json.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if inside => escaped = true,
            '"' => inside = !inside,
            c if !inside => out.push(c),
            _ => {}
        }
    }
    out
}

fn soak() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the runner of the tests says how much of them it wants")]
    std::env::var("PACELINE_SOAK").is_ok_and(|soak| soak == "1")
}

#[test]
fn every_way_to_guess_gives_the_plain_json_without_white_space() {
    let mut bench = Bench::new();
    let all: Vec<Value> = serde_json::from_str(SCHEMAS).expect("the file is JSON");
    let chosen =
        all.iter().filter(|case| soak() || case["name"].as_str().is_some_and(|name| SHARE.contains(&name)));
    let mut answers = 0;
    // What was sent and what was right, by the way to guess.
    let (mut alone, mut beside, mut cut, mut messy) = ((0, 0), (0, 0), (0, 0), (0, 0));
    for case in chosen {
        let grammar = Grammar::new(GrammarKind::JsonSchema, case["schema"].to_string());
        for temperature in [0.0, 1.0] {
            let ask = case["ask"].as_str().expect("every schema has something to ask");
            let request = bench.request(ask, grammar.clone(), temperature, 260);
            let (text, heard) = bench.check(&request, &format!("{} at {temperature}", case["name"]));
            // That it validates is for the tests over HTTP, which have somebody else's reader of schemas.
            let _: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(!outside_of_strings(&text).contains(char::is_whitespace), "{text}");
            answers += 1;
            for (own, heard) in &heard {
                match own {
                    Own::Forced => add(&mut alone, source(heard, "forced")),
                    Own::Messy => add(&mut messy, source(heard, "messy")),
                    Own::Both => {
                        add(&mut beside, source(heard, "forced"));
                        add(&mut cut, source(heard, "messy"));
                    }
                }
            }
        }
    }
    println!("in {answers} answers: forced {alone:?}, bad guesses {messy:?}, both {beside:?} and {cut:?}");
    // What is sent behind a wrong guess is wrong too, so no more than this can be asked.
    assert!(alone.1 > 5 * answers, "{alone:?} forced tokens in {answers} answers");
    assert!(beside.1 > 5 * answers, "{beside:?} forced tokens beside bad guesses in {answers} answers");
    // Most of them leave the grammar: few are sent where somebody follows it, and hardly any are right elsewhere.
    assert!(0 < cut.0 && cut.0 < messy.0, "{cut:?} bad guesses within the grammar in {answers} answers");
    assert!(messy.0 > 20 * answers && 4 * messy.1 < messy.0, "{messy:?} bad guesses in {answers} answers");
}

/// What a source has guessed in an answer, and how much of it was right.
fn source(heard: &Heard, name: &str) -> (u64, u64) {
    let found = heard.timings.guesses.sources().find(|source| source.name == name);
    let guesses = found.map_or((0, 0), |source| (source.guesses.proposed, source.guesses.accepted));
    assert!(guesses.1 <= guesses.0, "{name}: {guesses:?}");
    guesses
}

fn add(sum: &mut (u64, u64), guesses: (u64, u64)) {
    sum.0 += guesses.0;
    sum.1 += guesses.1;
}

#[test]
fn regular_expressions_choices_and_gbnf_are_followed_to_their_end() {
    let mut bench = Bench::new();
    let cases = [
        (GrammarKind::Regex, "[A-Z][a-z]{2,8} [0-9]{3}", 60),
        (GrammarKind::Regex, "(yes|no), because .{5,20}\\.", 60),
        (GrammarKind::Lark, "start: CHOICE\nCHOICE: \"red\" | \"green\" | \"light green\"", 60),
        (
            GrammarKind::Gbnf,
            "root ::= \"{\" pair (\",\" pair)? \"}\"\npair ::= [a-z]{1,3} \"=\" value\nvalue ::= [0-9]{1,2} | root",
            40,
        ),
    ];
    for (kind, text, limit) in cases {
        for temperature in [0.0, 1.0] {
            let request = bench.request("Say something.", Grammar::new(kind, text), temperature, limit);
            let (answer, _) = bench.check(&request, text);
            let tokens = bench.vocab.tokenize(&answer, false, false).expect("a short text");
            let is_whole = kind == GrammarKind::Gbnf || tokens.len() < limit as usize;
            assert!(!answer.is_empty() && is_whole, "{text}: {answer}");
            match text {
                "[A-Z][a-z]{2,8} [0-9]{3}" => {
                    let (word, number) = answer.split_once(' ').expect("a blank");
                    assert!(
                        number.len() == 3 && number.parse::<u32>().is_ok() && word.len() < 10,
                        "{answer}"
                    );
                }
                text if text.contains("light") => {
                    assert!(["red", "green", "light green"].contains(&answer.as_str()), "{answer}");
                }
                text if text.contains("because") => assert!(answer.contains(", because "), "{answer}"),
                _ => assert!(answer.starts_with('{') && !answer.contains(' '), "{answer}"),
            }
        }
    }
}

#[test]
fn an_answer_that_reaches_its_limit_is_a_beginning_of_one() {
    let mut bench = Bench::new();
    let schema =
        r#"{"type":"object","properties":{"text":{"type":"string","minLength":100}},"required":["text"]}"#;
    let request = bench.request("Write.", Grammar::new(GrammarKind::JsonSchema, schema), 0.0, 12);
    let (text, heard) = bench.check(&request, "a limit");
    assert!(text.starts_with("{\"text\":\""), "{text}");
    assert!(heard.iter().all(|(_, heard)| heard.answer.tokens.len() == 12));
}

/// What is answered without a form, and a mark in it that begins and ends inside of tokens.
struct Marked {
    text: String,
    mark: String,
    /// Where the mark ends, in bytes, and the token that ends it.
    end: usize,
    token_end: usize,
}

/// Three digits and two short words.
const FORM: &str = "[ ]?[0-9]{3}(, [a-z]{2,4}){2}";

fn is_form(text: &str) -> bool {
    let words: Vec<&str> = text.trim_start().split(", ").collect();
    words.len() == 3 && words[0].len() == 3 && words[0].bytes().all(|byte| byte.is_ascii_digit())
}

impl Bench {
    fn marked(&mut self, temperature: f32) -> Marked {
        let mut free =
            self.request("Say something.", Grammar::new(GrammarKind::Regex, FORM), temperature, 60);
        free.sampler.grammar = None;
        let tokens = plain::answer(&mut self.alone, &free).tokens;
        let text = self.text(&tokens);
        let start = text.char_indices().nth(9).map_or(0, |(at, _)| at);
        let mark: String = text[start..].chars().take(5).collect();
        let end = text.find(&mark).expect("it is from there") + mark.len();
        let ends = (0..=tokens.len()).map(|n| self.text(&tokens[..n]).len());
        let token_end = ends.into_iter().find(|&at| at >= end).expect("some token ends it");
        Marked { text, mark, end, token_end }
    }

    /// The answer in the form, which waits for a text.
    fn answer_after(&mut self, after: After, temperature: f32) -> (String, Vec<(Own, Heard)>) {
        let what = format!("behind {after:?} at {temperature}");
        let grammar = Grammar { after: Some(after), ..Grammar::new(GrammarKind::Regex, FORM) };
        let request = self.request("Say something.", grammar, temperature, 60);
        self.check(&request, &what)
    }
}

#[test]
fn a_grammar_that_may_begin_changes_nothing_before_its_mark_and_everything_behind_it() {
    let mut bench = Bench::new();
    for temperature in [0.0, 1.0] {
        let Marked { text, mark, end, .. } = bench.marked(temperature);
        let (answer, _) = bench.answer_after(After::may(mark.as_str()), temperature);
        assert!(answer.starts_with(&text[..end]), "{answer:?} begins otherwise than {text:?}");
        // What the mark's own token says beyond it may be no beginning of the form; then the wait goes on to the end.
        assert!(is_form(&answer[end..]) || answer == text, "{answer:?} after {mark:?}");
        let (answer, _) = bench.answer_after(After::may("<never said>"), temperature);
        assert_eq!(answer, text, "a mark that never comes");
    }
}

#[test]
fn a_grammar_that_must_begin_begins_behind_its_mark_and_without_one_the_answer_has_no_end() {
    let mut bench = Bench::new();
    for temperature in [0.0, 1.0] {
        let Marked { text, mark, end, token_end } = bench.marked(temperature);
        let (answer, _) = bench.answer_after(After::must(mark.as_str()), temperature);
        assert!(answer.starts_with(&text[..end]), "{answer:?} begins otherwise than {text:?}");
        // What the mark's own token says beyond it is part of the form, or of what came before.
        assert!(is_form(&answer[end..]) || is_form(&answer[token_end..]), "{answer:?} after {mark:?}");
        let (answer, heard) = bench.answer_after(After::must("<never said>"), temperature);
        assert!(
            heard.iter().all(|(_, heard)| heard.answer.tokens.len() == 60),
            "{answer:?} ends without its form"
        );
    }
}
