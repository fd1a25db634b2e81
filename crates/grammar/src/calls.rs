//! The grammars that `server` makes of tools, held against calls as models write them. They are its snapshots.

use protocol::{Grammar, GrammarKind};

use crate::testing::{follows, grammars};

macro_rules! snapshot {
    ($name:literal) => {
        include_str!(concat!("../../server/tests/api/snapshots/api__structured__", $name, ".snap"))
    };
}

/// What a snapshot holds below its head.
fn grammar(snapshot: &str) -> Grammar {
    let (_, text) =
        snapshot.split_once("---\n").and_then(|(_, rest)| rest.split_once("---\n")).expect("two lines");
    let text =
        text.strip_prefix("# after ").and_then(|rest| rest.split_once('\n')).map_or(text, |(_, text)| text);
    Grammar::new(GrammarKind::Lark, text)
}

#[track_caller]
fn check(snapshot: &str, followed: &[&str], left: &[&str]) {
    let (grammars, grammar) = (grammars(), grammar(snapshot));
    for text in followed {
        assert!(follows(&grammars, &grammar, text), "not followed: {text}");
    }
    for text in left {
        assert!(!follows(&grammars, &grammar, text), "followed: {text}");
    }
}

#[test]
fn calls_between_marks_as_hermes_and_qwen_write_them() {
    check(
        snapshot!("hermes_auto"),
        &[
            "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": [1, 2]}}\n</tool_call>",
            "{\"name\": \"time\", \"arguments\": {}}",
            "\n{\"name\": \"time\", \"arguments\": {\"any\":1}}\n</tool_call>\n<tool_call>\n{\"name\": \"weather\", \
             \"arguments\": {\"city\":\"Rome\",\"unit\":\"C\"}}\n</tool_call>",
        ],
        &[
            "\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>",
            "\n{\"name\": \"other\", \"arguments\": {}}",
            "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"K\"}}",
            "\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>\nDone.",
            "",
        ],
    );
    check(
        snapshot!("hermes_required"),
        &["weather\", \"arguments\": {\"city\":\"Oslo\"}}", "time\", \"arguments\": {}}"],
        &["weather\", \"arguments\": {}}", "times\", \"arguments\": {}}", "weather\", \"arguments\": { }}"],
    );
    check(snapshot!("hermes_named"), &["{\"city\":\"Oslo\"}}"], &["{\"city\":\"Oslo\"}", "{}}"]);
}

#[test]
fn calls_in_xml_as_qwen3_coder_writes_them() {
    let weather = "weather>\n<parameter=city>\nNew \"York\"\n\n(NY)\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n</function>";
    let unit =
        "weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>";
    check(
        snapshot!("qwen_xml_auto"),
        &[
            &format!("\n<function={weather}\n</tool_call>"),
            &format!(
                "\n<function={unit}\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>"
            ),
        ],
        &[
            "\n<function=weather>\n</function>\n</tool_call>",
            &format!("\n<function={}", unit.replace("\nC\n", "\nK\n")),
            "\n<function=other>\n</function>",
        ],
    );
    check(
        snapshot!("qwen_xml_required"),
        &[&weather.replace(", ", ","), unit, "time>\n</function>"],
        &["weather>\n</function>"],
    );
    check(
        snapshot!("qwen_xml_named"),
        &["<parameter=city>\nRome\n</parameter>\n</function>"],
        &["</function>"],
    );
}

#[test]
fn calls_as_llama_3_writes_them() {
    check(
        snapshot!("llama3_auto"),
        &[
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
            "{\"name\": \"time\", \"parameters\": {}}; {\"name\": \"time\", \"parameters\": {}}",
        ],
        &["{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}", "print(1)"],
    );
    check(snapshot!("llama3_required"), &["time\", \"parameters\": {}}"], &["time\", \"arguments\": {}}"]);
    check(snapshot!("json_required"), &["time\", \"arguments\": {}}"], &["time\", \"parameters\": {}}"]);
}

#[test]
fn calls_as_mistral_writes_them() {
    let one = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}";
    check(
        snapshot!("mistral_auto"),
        &[&format!("[{one}]"), &format!(" [{one}, {one}]")],
        &[one, "[]", &format!("[{one}]x")],
    );
    check(snapshot!("mistral_required"), &["time\", \"arguments\": {}}"], &["time[ARGS]{}"]);
    check(
        snapshot!("mistral_named_auto"),
        &["weather[ARGS]{\"city\": \"Oslo\"}", "time[ARGS]{}[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\"}"],
        &["weather[ARGS]{}", "other[ARGS]{}", "time[ARGS]{} and so on"],
    );
    check(
        snapshot!("mistral_named_required"),
        &["weather[ARGS]{\"city\":\"Oslo\"}", "time[ARGS]{}"],
        &["other[ARGS]{}"],
    );
    check(snapshot!("mistral_named_named"), &["{\"city\":\"Oslo\"}"], &["{}"]);
}

#[test]
fn calls_as_deepseek_writes_them() {
    let fenced = "weather\n```json\n{\"city\": \"Oslo\"}";
    let begin = "function<｜tool▁sep｜>";
    let end = "\n```<｜tool▁call▁end｜>";
    check(
        snapshot!("deepseek_auto"),
        &[
            &format!("{begin}{fenced}{end}<｜tool▁calls▁end｜>"),
            &format!("{begin}{fenced}{end}\n<｜tool▁call▁begin｜>{begin}time\n```json\n{{}}{end}"),
        ],
        &[fenced, &format!("{begin}other\n```json\n{{}}"), &format!("{begin}{fenced}{end}Done")],
    );
    let tight = &fenced.replace(": ", ":");
    check(snapshot!("deepseek_required"), &[tight, "time\n```json\n{}"], &["weather\n```json\n{}", "time{}"]);
    let plain = "weather<｜tool▁sep｜>{\"city\": \"Oslo\"}";
    check(
        snapshot!("deepseek_plain_auto"),
        &[&format!(
            "{plain}<｜tool▁call▁end｜><｜tool▁call▁begin｜>{plain}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        )],
        &[&format!("{plain}{plain}")],
    );
    check(snapshot!("deepseek_plain_required"), &[&plain.replace(": ", ":")], &["other<｜tool▁sep｜>{}"]);
}

#[test]
fn calls_as_gpt_oss_writes_them() {
    let call = "weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}";
    check(
        snapshot!("harmony_auto"),
        &[call],
        &["weather <|message|>", "other <|constrain|>json<|message|>{}"],
    );
    check(
        snapshot!("harmony_required"),
        &[&call.replace(": ", ":"), "time <|constrain|>json<|message|>{}"],
        &["weather <|constrain|>json<|message|>{}"],
    );
    check(snapshot!("harmony_named"), &["{\"city\":\"Oslo\"}"], &["{}"]);
}

/// An answer, or a call from its beginning on.
#[test]
fn answers_in_a_form_beside_calls() {
    let answer = &["{\"any\":[1,{\"of\":null}]}", "{}"][..];
    let also = |calls: &[&'static str]| [answer, calls].concat();
    let left = &["", "weather", "{\"any\": 1}", "[1]"][..];
    check(
        snapshot!("hermes_or_answer"),
        &also(&["<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Oslo\"}}"]),
        &[left, &["<tool_call>\n{}"][..]].concat(),
    );
    check(
        snapshot!("qwen_xml_or_answer"),
        &also(&["<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>"]),
        left,
    );
    let bare = "{\"name\": \"weather\", \"parameters\": {\"city\":\"Oslo\"}}";
    check(snapshot!("llama3_or_answer"), &also(&[bare]), left);
    let bare = "{\"name\": \"weather\", \"arguments\": {\"city\":\"Oslo\"}}";
    check(snapshot!("json_or_answer"), &also(&[bare]), left);
    check(
        snapshot!("mistral_or_answer"),
        &also(&["[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}}"]),
        left,
    );
    check(snapshot!("mistral_named_or_answer"), &also(&["[TOOL_CALLS]time[ARGS]{}"]), left);
    let call = "<｜tool▁call▁begin｜>";
    check(
        snapshot!("deepseek_or_answer"),
        &[answer, &[&*format!("{call}function<｜tool▁sep｜>time\n```json\n{{}}")]].concat(),
        left,
    );
    check(
        snapshot!("deepseek_plain_or_answer"),
        &[answer, &[&*format!("{call}time<｜tool▁sep｜>{{}}")]].concat(),
        left,
    );
}
