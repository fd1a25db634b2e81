use super::*;
use crate::testing::{follows, grammars};
use protocol::{Grammar, GrammarKind};

fn gbnf(text: &str) -> Grammar {
    Grammar::new(GrammarKind::Gbnf, text)
}

/// Whether each text is an answer of the grammar.
fn check(text: &str, good: &[&str], bad: &[&str]) {
    let grammars = grammars();
    for answer in good {
        assert!(follows(&grammars, &gbnf(text), answer), "{answer:?} by {text}\n{}", to_lark(text).unwrap());
    }
    for answer in bad {
        assert!(!follows(&grammars, &gbnf(text), answer), "{answer:?} by {text}\n{}", to_lark(text).unwrap());
    }
}

#[test]
fn texts_classes_and_repetitions_mean_what_they_mean_in_llama_cpp() {
    check("root ::= \"yes\" | \"no\"", &["yes", "no"], &["ye", "yesno", "maybe", ""]);
    check("root ::= [a-c]+ \"x\"?", &["a", "abc", "cx"], &["x", "ad", "abxx"]);
    check("root ::= [^a-c\\n] .", &["dz", "d\n", "-é"], &["az", "\nz", "d"]);
    check("root ::= \"a\"{2} \"b\"{1,2} \"c\"{2,}", &["aabcc", "aabbcccc"], &["abcc", "aabbbcc", "aabc"]);
    check(r#"root ::= "\"\\\x41\u00e9" [\]\[\-]"#, &["\"\\Aé]", "\"\\Aé-"], &["\"\\Aé|"]);
    check("root ::= [+-] [a-]", &["+a", "--"], &["a-"]);
}

#[test]
fn a_shorter_alternative_is_not_hidden_by_a_longer_one() {
    check("root ::= \"ab\" \"c\" | \"a\" \"bd\"", &["abc", "abd"], &["ab", "abe"]);
    check("root ::= a b\na ::= [a-z]+\nb ::= \"z\" \"!\"", &["az!", "zz!"], &["z!", "az"]);
}

#[test]
fn lines_comments_and_groups_are_read() {
    let text = "# a list\nroot   ::= item (\n  \",\" # next\n  item\n)*\n\nitem ::=\n  [0-9] |\n  \"-\" item2\nitem2 ::= [0-9]";
    check(text, &["1", "1,-2,3"], &["", "1,", "--1"]);
}

#[test]
fn rules_may_recur() {
    let text = "root ::= \"(\" root* \")\"";
    check(text, &["()", "(()())", "((()))"], &["(", "())", ")("]);
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    check(
        json,
        &["{}", "{\"a\": [1, 2.5, {\"b\":null}], \"é\\n\":\"\\u00e9\"}", "{\n\t\"x\":-1e+2}"],
        &["[]", "{\"a\"}", "{\"a\":01x}", "{\"a\":}", "{  }"],
    );
}

#[test]
fn what_is_not_gbnf_is_refused_with_its_line() {
    let cases = [
        ("", "no rule named `root`"),
        ("other ::= \"a\"", "no rule named `root`"),
        ("root ::= \"a", "line 1 of the GBNF: a text has no end"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2 of the GBNF: the rule `root` is there twice"),
        ("root ::= x", "there is no rule named `x`"),
        ("root = \"a\"", "expected `:`, found `=`"),
        ("root ::= [z-a]", "the wrong way round"),
        ("root ::= \"a\"{3,2}", "the wrong way round"),
        ("root ::= \"a\"{99999}", "a repetition of more than 10000"),
        ("root ::= <think>", "token literals are not supported"),
        ("root ::= \"\\q\"", "unknown escape `\\q`"),
        ("root ::= \"a\" )", "expected a rule's name, found `)`"),
    ];
    for (text, says) in cases {
        let error = to_lark(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(101), ")".repeat(101));
    assert!(to_lark(&deep).unwrap_err().to_string().contains("parentheses"));
}
