use protocol::{After, Epoch, Grammar, GrammarKind, Token};
use serde_json::json;
use spec::{Answer, Ask, Proposer};

use crate::testing::{END, LONGER, Toy, allowed, follows, grammars};
use crate::{Constraint, Forced, GrammarError, Grammars, Vocabulary};

fn json_schema(schema: serde_json::Value) -> Grammar {
    Grammar::new(GrammarKind::JsonSchema, schema.to_string())
}

fn regex(text: &str) -> Grammar {
    Grammar::new(GrammarKind::Regex, text)
}

fn start(grammar: &Grammar) -> Constraint {
    grammars().start(grammar).unwrap()
}

fn text_of(tokens: &[Token]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| Toy.append_bytes(token, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

fn person() -> Grammar {
    json_schema(json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "ok": { "type": "boolean" } },
        "required": ["name", "ok"],
        "additionalProperties": false,
    }))
}

#[test]
fn json_has_no_free_white_space() {
    let grammars = grammars();
    for answer in
        [r#"{"name":"a b","ok":true}"#, r#"{"name":"\n","ok":false}"#, r#"{"name":"é😀","ok":true}"#]
    {
        assert!(follows(&grammars, &person(), answer), "{answer}");
    }
    for answer in [
        r#"{"name": "a","ok":true}"#,
        r#"{ "name":"a","ok":true}"#,
        "{\n\"name\":\"a\",\"ok\":true}",
        r#"{"name":"a","ok":true} "#,
        "```json\n{\"name\":\"a\",\"ok\":true}",
        r#"{"name":"a"}"#,
        r#"{"ok":true,"name":"a"}"#,
    ] {
        assert!(!follows(&grammars, &person(), answer), "{answer}");
    }
    let chosen = json!({ "type": "object", "x-guidance": { "whitespace_flexible": true } });
    assert!(!follows(&grammars, &json_schema(chosen), "{ }"), "layout is not the client's to choose");
}

#[test]
fn a_grammar_ends_where_nothing_more_may_come() {
    let mut constraint = start(&person());
    let answer = Toy.tokenize(r#"{"name":"x","ok":true}"#);
    let (last, before) = answer.split_last().unwrap();
    for &token in before {
        assert!(!constraint.say(token).unwrap());
    }
    assert!(constraint.say(*last).unwrap());
    assert!(constraint.is_over());
    assert_eq!(allowed(&mut constraint), [END]);
    assert!(matches!(constraint.say(Token(32)), Err(GrammarError::Left { .. })));

    let mut open = start(&regex("a+"));
    assert_eq!(allowed(&mut open), [Token(97)]);
    assert!(!open.say(Token(97)).unwrap());
    assert_eq!(allowed(&mut open), [Token(97), END]);
    assert!(open.say(END).unwrap(), "where it may end, the end token ends it");
}

#[test]
fn special_tokens_are_never_text() {
    let mut anything = start(&regex("(?s:.*)"));
    let special = Token(END.0 + 1);
    let allowed = allowed(&mut anything);
    assert!(allowed.contains(&Token(258)) && allowed.contains(&END) && !allowed.contains(&special));
}

#[test]
fn what_may_not_come_next_is_minus_infinity_and_the_rest_is_untouched() {
    let mut constraint = start(&regex("[ab]c"));
    let mut logits: Vec<f32> = (0..Toy.n_tokens() + 40).map(|i| i as f32).collect();
    constraint.mask(&mut logits).unwrap();
    for (i, logit) in logits.iter().enumerate() {
        let expected = if i == 97 || i == 98 { i as f32 } else { f32::NEG_INFINITY };
        assert_eq!(*logit, expected, "token {i}");
    }
}

#[test]
fn choices_schemas_with_references_and_unicode_are_followed() {
    let grammars = grammars();
    let lark = |text: &str| Grammar::new(GrammarKind::Lark, text);
    let choice = lark("start: CHOICE\nCHOICE: \"a\" | \"ab\" | \"é \\\"q\\\"\"");
    for (answer, is_good) in [("a", true), ("ab", true), ("é \"q\"", true), ("b", false), ("abc", false)] {
        assert_eq!(follows(&grammars, &choice, answer), is_good, "{answer}");
    }
    let tree = json_schema(json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object",
            "properties": { "kids": { "type": "array", "items": { "$ref": "#/$defs/node" }, "maxItems": 2 } },
            "required": ["kids"],
            "additionalProperties": false,
        } },
    }));
    assert!(follows(&grammars, &tree, r#"{"kids":[{"kids":[]},{"kids":[]}]}"#));
    assert!(!follows(&grammars, &tree, r#"{"kids":[{"kids":[]},{"kids":[]},{"kids":[]}]}"#));
    let any = json_schema(
        json!({ "anyOf": [{ "const": "日本" }, { "type": "integer", "minimum": 3, "maximum": 12 }] }),
    );
    for (answer, is_good) in [("\"日本\"", true), ("12", true), ("13", false), ("2", false)] {
        assert_eq!(follows(&grammars, &any, answer), is_good, "{answer}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_in_one_sentence() {
    let grammars = grammars();
    let cases = [
        (GrammarKind::JsonSchema, "{", "cannot be used"),
        (GrammarKind::JsonSchema, "7", "a JSON schema is an object"),
        (GrammarKind::JsonSchema, r#"{"type":"thing"}"#, "thing"),
        (GrammarKind::JsonSchema, r#"{"$ref":"http://elsewhere/x"}"#, "$ref"),
        (GrammarKind::JsonSchema, r##"{"$ref":"#/nowhere"}"##, "nowhere"),
        (GrammarKind::JsonSchema, r#"{"not":{"type":"string"}}"#, "not"),
        (GrammarKind::JsonSchema, "false", "object"),
        (GrammarKind::Regex, "(", "cannot be used"),
        (GrammarKind::Regex, "(?=a)b", "cannot be used"),
        (GrammarKind::Lark, "start: other", "other"),
        (GrammarKind::Gbnf, "root ::= (", "line 1"),
    ];
    for (kind, text, says) in cases {
        let error = grammars.start(&Grammar::new(kind, text)).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
    }
    let long = Grammar::new(GrammarKind::Regex, "a".repeat((256 << 10) + 1));
    assert!(matches!(grammars.start(&long), Err(GrammarError::TooLong { .. })));
}

/// Guesses after the answer so far, as text.
fn guesses(source: &mut Forced, answer: &str, n: usize) -> String {
    let text = Toy.tokenize(answer);
    match source.propose(&ask(&text), n) {
        Answer::Guesses(block) => text_of(&block.tokens),
        Answer::Nothing => String::new(),
        Answer::NotYet | Answer::Promised => panic!("it answers at once"),
    }
}

fn ask(text: &[Token]) -> Ask<'_> {
    Ask { tokens: text, n_committed: 0, n_sent: text.len(), epoch: Epoch(0) }
}

#[test]
fn what_the_grammar_forces_is_guessed_wherever_the_text_goes() {
    let mut source = Forced::new(start(&person()));
    source.begin(&[]);
    assert_eq!(guesses(&mut source, "", 9), "{\"name\":");
    assert_eq!(guesses(&mut source, "{\"name\":\"x", 9), "");
    assert_eq!(guesses(&mut source, "{\"name\":\"x\"", 9), ",\"ok\":");
    assert_eq!(guesses(&mut source, "{\"name\":\"x\",\"ok\":t", 9), "rue}");
    assert_eq!(guesses(&mut source, "{\"name\":\"x\",\"ok\":f", 9), "alse}", "the guess was wrong");
    assert_eq!(guesses(&mut source, "{\"name\":", 9), "", "the quote may be a part of a longer token");
    assert_eq!(guesses(&mut source, "{\"name\":1", 9), "", "this is no answer at all");
    assert_eq!(guesses(&mut source, "{\"name\":\"x\"", 2), ",\"");
    assert_eq!(guesses(&mut source, "{\"name\":\"x\",\"ok\":true}", 9), "", "this one is over");
}

#[test]
fn guesses_that_leave_the_grammar_are_cut() {
    let mut source = Forced::new(start(&person()));
    source.begin(&[]);
    let mut allows = |answer: &str, guess: &str| {
        let (text, guess) = (Toy.tokenize(answer), Toy.tokenize(guess));
        text_of(&guess[..source.allows(&ask(&text), &guess)])
    };
    assert_eq!(allows("", "```json\n{"), "");
    assert_eq!(allows("", "\n\n{"), "");
    assert_eq!(allows("", "{\"name\":\"a b"), "{\"name\":\"a b");
    assert_eq!(allows("{\"name\":\"a", "b\", \"ok\""), "b\",", "no blank after a comma");
    assert_eq!(allows("{\"name\":\"x\",\"ok\":", "true}```"), "true}");
    assert_eq!(allows("{\"name\":\"x\",\"ok\":true}", "\n"), "");
}

#[test]
fn a_token_that_is_forced_is_the_only_one_allowed() {
    let mut constraint = start(&person());
    let mut source = Forced::new(start(&person()));
    source.begin(&[]);
    let mut text: Vec<Token> = Vec::new();
    for token in Toy.tokenize("{\"name\":\"ab\",\"ok\":true}") {
        let forced = match source.propose(&ask(&text), 1) {
            Answer::Guesses(block) => Some(block.tokens[0]),
            _ => None,
        };
        let allowed = allowed(&mut constraint);
        assert_eq!(forced.is_some(), allowed.len() == 1, "{:?}", text_of(&text));
        let next = forced.unwrap_or(token);
        assert!(allowed.contains(&next));
        constraint.say(next).unwrap();
        text.push(next);
        if constraint.is_over() {
            break;
        }
    }
    assert_eq!(text_of(&text), "{\"name\":\"ab\",\"ok\":true}");
    assert!(text.contains(&Token(256 + LONGER.iter().position(|&word| word == "true").unwrap() as i32)));
}

#[test]
fn a_grammar_may_wait_for_the_end_of_the_reasoning() {
    let grammar = Grammar { after: Some(After::must("</think>")), ..regex("yes|no") };
    let mut constraint = start(&grammar);
    let n_tokens = Toy.n_tokens();
    for token in Toy.tokenize("hm {\"a</thin") {
        assert_eq!(allowed(&mut constraint).len(), n_tokens - 1, "anything but the end");
        assert!(matches!(constraint.say(END), Err(GrammarError::Left { .. })));
        assert!(!constraint.say(token).unwrap());
    }
    constraint.say(Token(i32::from(b'k'))).unwrap();
    assert!(!constraint.say(Token(i32::from(b'>'))).unwrap());
    assert_eq!(allowed(&mut constraint), [Token(i32::from(b'n')), Token(i32::from(b'y'))]);

    let mut source = Forced::new(start(&grammar));
    source.begin(&[]);
    assert_eq!(guesses(&mut source, "so</think>y", 9), "es");
    assert_eq!(guesses(&mut source, "so</thin", 9), "");
    assert_eq!(guesses(&mut source, "so</think", 9), "");
    assert_eq!(guesses(&mut source, "so</think>n", 9), "o");
    assert_eq!(guesses(&mut source, "no</think>n", 9), "o", "other thoughts");
}

#[test]
fn a_grammar_that_may_never_begin_lets_everything_through_until_its_mark() {
    let calls = regex("[ ]?(ab)+;");
    let grammar = Grammar { after: Some(After::may("<call>")), ..calls };
    let mut constraint = start(&grammar);
    for token in Toy.tokenize("text <cal") {
        assert_eq!(allowed(&mut constraint).len(), Toy.n_tokens(), "also the end");
        assert!(!constraint.say(token).unwrap());
    }
    assert!(!constraint.say(END).unwrap(), "who goes on after an end goes on waiting");
    for token in Toy.tokenize("<call>") {
        constraint.say(token).unwrap();
    }
    let ab = Token(256 + 7);
    assert_eq!(allowed(&mut constraint), [Token(i32::from(b' ')), Token(i32::from(b'a')), ab]);
    assert!(matches!(constraint.say(END), Err(GrammarError::Left { .. })));
    constraint.say(ab).unwrap();
    assert!(constraint.say(Token(i32::from(b';'))).unwrap(), "the grammar's end ends the answer");

    let mut source = Forced::new(start(&grammar));
    source.begin(&[]);
    assert_eq!(guesses(&mut source, "no <cal", 9), "");
    assert_eq!(guesses(&mut source, "no <call> ", 9), "ab");
    assert_eq!(guesses(&mut source, "no <call;", 9), "", "it was none");
    assert_eq!(guesses(&mut source, "no <call> ab", 9), "", "either a or the end");
}

#[test]
fn what_a_token_says_beyond_the_mark_belongs_to_the_grammar() {
    // One token says the mark's last letter and the answer's first: `ab`.
    let grammar = |after| Grammar { after: Some(after), ..regex("b[xy]") };
    let x_or_y = [b'x', b'y'].map(|byte| Token(i32::from(byte)));
    let ab = Token(256 + 7);
    for after in [After::must("(a"), After::may("(a")] {
        let mut constraint = start(&grammar(after));
        constraint.say(Token(i32::from(b'('))).unwrap();
        constraint.say(ab).unwrap();
        assert_eq!(allowed(&mut constraint), x_or_y);
        assert!(constraint.take_back(1));
        constraint.say(Token(i32::from(b'a'))).unwrap();
        assert_eq!(allowed(&mut constraint), [Token(i32::from(b'b'))], "taken back and said in another way");
    }
    // What does not fit was no beginning.
    let mut constraint = start(&Grammar { after: Some(After::may("(a")), ..regex("c") });
    constraint.say(Token(i32::from(b'('))).unwrap();
    constraint.say(ab).unwrap();
    assert_eq!(allowed(&mut constraint).len(), Toy.n_tokens());
}

#[test]
fn tokens_are_named_by_their_numbers_in_a_grammar() {
    let call = END.0 + 1;
    let grammar = Grammar::new(GrammarKind::Lark, format!("start: \"a\" <[{call}]> \"b\" <[{}]>?", 256));
    let mut constraint = start(&grammar);
    constraint.say(Token(i32::from(b'a'))).unwrap();
    assert_eq!(allowed(&mut constraint), [Token(call)]);
    constraint.say(Token(call)).unwrap();
    constraint.say(Token(i32::from(b'b'))).unwrap();
    assert_eq!(allowed(&mut constraint), [Token(256), END], "one that is text, too");
}

#[test]
fn an_interrupted_answer_goes_on_in_its_grammar() {
    let whole = Grammar { after: Some(After::must("</think>")), ..regex("yes|no") };
    let at = |said: &str| start(&Grammar { said: Toy.tokenize(said), ..whole.clone() });
    assert_eq!(allowed(&mut at("so</think>ye")), [Token(i32::from(b's'))]);
    assert_eq!(allowed(&mut at("so</th")).len(), Toy.n_tokens() - 1);
    let left = grammars().start(&Grammar { said: Toy.tokenize("yep"), ..regex("yes") });
    assert!(matches!(left, Err(GrammarError::Left { .. })), "it was never in it");

    let mut source = Forced::new(start(&whole));
    source.begin(&[]);
    assert_eq!(guesses(&mut source, "so</think>y", 9), "es");
    source.begin(&Toy.tokenize("so</think>y"));
    assert_eq!(guesses(&mut source, "so</think>ye", 9), "s", "the answer still begins where it began");
}

/// Says whatever is allowed, chosen by a fixed rule, for `n` tokens.
pub(crate) fn wander(grammars: &Grammars, grammar: &Grammar, n: usize) -> Result<(), GrammarError> {
    let mut constraint = grammars.start(grammar)?;
    for i in 0..n {
        if constraint.is_over() {
            break;
        }
        let mut logits = vec![0.0; Toy.n_tokens()];
        constraint.mask(&mut logits)?;
        let allowed: Vec<Token> = (0..)
            .map(Token)
            .zip(&logits)
            .filter(|(_, logit)| **logit == 0.0)
            .map(|(token, _)| token)
            .collect();
        constraint.say(allowed[(i * 7919) % allowed.len()])?;
    }
    Ok(())
}

/// Objects in objects, `n` deep.
fn nested(n: usize) -> serde_json::Value {
    (0..n).fold(json!({ "type": "string" }), |inner, _| {
        json!({ "type": "object", "properties": { "a": inner }, "required": ["a"], "additionalProperties": false })
    })
}

fn properties(n: usize) -> serde_json::Value {
    let properties: serde_json::Map<_, _> =
        (0..n).map(|i| (format!("p{i}"), json!({ "type": "string" }))).collect();
    json!({ "type": "object", "properties": properties })
}

/// Choices that multiply: 2^n schemas if written out.
fn all_of(n: usize) -> serde_json::Value {
    let part = |name: String| json!({ "properties": { name: { "type": "string" } } });
    let all: Vec<_> =
        (0..n).map(|i| json!({ "anyOf": [part(format!("a{i}")), part(format!("b{i}"))] })).collect();
    json!({ "allOf": all })
}

#[test]
fn a_hostile_grammar_is_followed_or_refused_and_never_takes_a_stage_with_it() {
    let values: Vec<String> = (0..10_000).map(|i| format!("value{i}")).collect();
    let lark = |text: &str| Grammar::new(GrammarKind::Lark, text);
    let doubling: String = (0..30).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1)).collect();
    let followed = [
        json_schema(nested(40)),
        json_schema(json!({ "enum": values })),
        json_schema(json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1_000_000 })),
        json_schema(json!({ "type": "string", "maxLength": 100_000_000 })),
        json_schema(json!({ "type": "string", "pattern": "^(a|aa)+$" })),
        json_schema(json!({ "type": "string", "pattern": "^(.*a.{200}){50}$" })),
        json_schema(properties(200)),
        regex("(a+)+b"),
        regex("((a{1,100}){1,100}){1,100}"),
        regex(".*a.{300}b"),
        regex("(.*a.*b.*c.*d.*e){30}"),
        regex("\\w{1,5000}x"),
        lark("start: e\ne: e e | \"a\" | e e e"),
        Grammar::new(GrammarKind::Gbnf, "root ::= root root | \"a\" root | \"a\" | root \"a\""),
    ];
    let refused = [
        (json_schema(properties(1001)), "1001 properties"),
        (json_schema(all_of(12)), "too large"),
        (json_schema(json!({ "type": "integer", "multipleOf": 9_999_991 })), "multipleOf"),
        (json_schema(json!({ "items": { "multipleOf": 0.123_456 } })), "multipleOf"),
        (lark("start: %json { \"multipleOf\": 9999991 }"), "multipleOf"),
        (json_schema(nested(100)), "recursion limit"),
        (Grammar::new(GrammarKind::Gbnf, format!("root ::= r0\n{doubling}r30 ::= [a-z]")), "too big"),
    ];
    let grammars = grammars();
    for grammar in followed {
        grammars.start(&grammar).unwrap_or_else(|error| panic!("{:.60}: {error}", grammar.text));
        // It may turn out to be too complex on the way; then that is said.
        let walked = wander(&grammars, &grammar, 100);
        let is_fine = matches!(walked, Ok(()) | Err(GrammarError::TooComplex { .. }));
        assert!(is_fine, "{:.60}: {walked:?}", grammar.text);
    }
    for (grammar, says) in refused {
        let error = grammars.start(&grammar).unwrap_err().to_string();
        assert!(error.contains(says), "{:.60}: {error}", grammar.text);
    }
}
