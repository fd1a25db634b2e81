use super::*;

const BASE: &str = "0123456789abcdef0123456789abcdef";

fn reading(calls: CallForm, tools: &[&str]) -> Reading {
    let syntax = Syntax { thinking: Some(("<think>", "</think>")), calls };
    Reading {
        syntax: Some(syntax),
        tools: tools.iter().map(ToString::to_string).collect(),
        ..Reading::default()
    }
}

/// The parts of a text that comes in pieces of `size` characters, on few lines.
fn parts(reading: &Reading, text: &str, size: usize) -> String {
    let (mut turn, mut parts) = Turn::new(reading, BASE.into());
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(size) {
        turn.push(&piece.iter().collect::<String>(), &mut parts);
    }
    turn.finish(&mut parts);
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Reasoning(text) => out.push_str(&format!("({text})")),
            Part::Text(text) => out.push_str(&text),
            Part::Call { name, .. } => out.push_str(&format!("@{name}:")),
            Part::Arguments(json) => out.push_str(&json),
        }
    }
    out.replace(")(", "")
}

fn check(reading: &Reading, text: &str, expected: &str) {
    for size in [1, 2, 3, 7, 1000] {
        assert_eq!(parts(reading, text, size), expected, "pieces of {size}: {text}");
    }
}

#[test]
fn hermes_calls_come_between_marks() {
    let reading = reading(CallForm::Hermes, &["f", "g"]);
    check(
        &reading,
        "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [1, {}]}}\n</tool_call>\n\
         <tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>",
        "Let me see.@f:{\"a\": \"}\\\"{\", \"b\": [1, {}]}@g:{}",
    );
    check(&reading, "<tool_call>{\"name\": \"g\"}</tool_call>", "@g:{}");
    check(
        &reading,
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1}\"}</tool_call>",
        "@f:{\"a\":1}",
    );
    check(&reading, "a <tool_call> b", "a <tool_call> b");
    check(&reading, "a < b <tool", "a < b <tool");
    check(&reading, "<tool_call>{\"x\": 1}</tool_call>", "{\"x\": 1}</tool_call>");
}

#[test]
fn calls_in_xml_become_json_with_the_types_of_the_tools() {
    let mut reading = reading(CallForm::QwenXml, &["f", "g"]);
    reading.texts = BTreeMap::from([("f".to_owned(), vec!["code".to_owned()])]);
    check(
        &reading,
        "I write.\n<tool_call>\n<function=f>\n<parameter=code>\nif a < \"b\":\n    </p>\n\n</parameter>\n<parameter=n>\n7\n\
         </parameter>\n<parameter=list>\n[1, {\"x\": \"</function>\"}]\n</parameter>\n</function>\n</tool_call>\n\
         <tool_call>\n<function=g>\n</function>\n</tool_call>",
        "I write.@f:{\"code\": \"if a < \\\"b\\\":\\n    </p>\\n\", \"n\": 7, \
         \"list\": [1,{\"x\":\"</function>\"}]}@g:{}",
    );
    check(
        &reading,
        "<tool_call><function=g><parameter=a>True</parameter><parameter=b>some text</parameter></function></tool_call>",
        "@g:{\"a\": true, \"b\": \"some text\"}",
    );
    check(&reading, "<tool_call>\n<function=f>\n<parameter=code>\ncut off\n", "@f:{\"code\": \"cut off\\n");
    check(&reading, "<tool_call>\n<function=f>\nnonsense", "@f:{}nonsense");
    check(&reading, "<tool_call> and <function=f>", "<tool_call> and <function=f>");
}

#[test]
fn without_tools_calls_are_text() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> ";
    check(&reading(CallForm::Hermes, &[]), text, text);
}

#[test]
fn reasoning_comes_apart_from_text() {
    let mut reading = reading(CallForm::Hermes, &["f"]);
    check(&reading, "<think>\nhm\n\n < 3\n</think>\n\nYes. ", "(hm\n\n < 3)Yes. ");
    check(&reading, "No <think> here", "No <think> here");
    check(&reading, "<think>a</think><tool_call>{\"name\":\"f\",\"arguments\":{}}", "(a)@f:{}");
    reading.thinking = true;
    check(&reading, "hm\n</think>\n\nYes", "(hm)Yes");
    check(&reading, "cut off", "(cut off)");
}

#[test]
fn bare_calls_are_the_whole_answer_and_of_known_tools() {
    let llama = reading(CallForm::Llama3, &["f", "g"]);
    check(&llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "@f:{\"a\": 1}");
    check(&llama, "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "@f:{}");
    check(
        &llama,
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
        "@f:{}@g:{}",
    );
    check(&llama, "{\"name\": \"Bob\", \"parameters\": {}}", "{\"name\": \"Bob\", \"parameters\": {}}");
    check(&llama, "{\"name\": \"f\"}", "{\"name\": \"f\"}");
    check(&llama, "Use {\"name\": \"f\", \"parameters\": {}}", "Use {\"name\": \"f\", \"parameters\": {}}");
    let json = reading(CallForm::Json, &["f"]);
    check(&json, "[{\"name\": \"f\", \"arguments\": {}}]", "@f:{}");
    check(
        &json,
        "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}",
        "@f:{\"a\":1}",
    );
    check(&json, "[1, 2]", "[1, 2]");
    check(&json, "{\"a\": {\"name\": \"f\"}}", "{\"a\": {\"name\": \"f\"}}");
}

#[test]
fn mistral_calls_are_a_list_or_named() {
    let reading = reading(CallForm::Mistral { named: false }, &["f", "g"]);
    check(
        &reading,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
        "@f:{\"a\": 1}@g:{}",
    );
    check(
        &reading,
        "Hm [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]12[ARGS]{}",
        "Hm@f:{\"a\": 1}@g:{}",
    );
}

#[test]
fn deepseek_calls_are_fenced_or_not() {
    let fenced = reading(CallForm::DeepSeek { fenced: true }, &["f", "g"]);
    check(
        &fenced,
        "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Ok@f:{\"a\": 1}@g:{}",
    );
    let plain = reading(CallForm::DeepSeek { fenced: false }, &["f"]);
    check(
        &plain,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "@f:{\"a\": 1}",
    );
}

#[test]
fn harmony_has_channels() {
    let tools = reading(CallForm::Harmony, &["f"]);
    check(
        &tools,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "(hm)Yes.",
    );
    check(
        &tools,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f \
         <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        "(hm)@f:{\"a\": 1}",
    );
    check(&tools, "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}", "@f:{}");
    check(&tools, "Just text", "Just text");
}

#[test]
fn a_forced_call_goes_on_from_its_opening() {
    for form in [
        CallForm::Hermes,
        CallForm::Llama3,
        CallForm::Json,
        CallForm::Mistral { named: false },
        CallForm::Mistral { named: true },
        CallForm::DeepSeek { fenced: true },
        CallForm::DeepSeek { fenced: false },
        CallForm::Harmony,
    ] {
        let mut reading = reading(form, &["f"]);
        reading.opening = form.opening(Some("f"));
        let mut whole = parts(&reading, "{\"a\": 1}}", 1);
        // Forms that write the arguments alone end before the last bracket.
        if let Some(shorter) = whole.strip_suffix("}}") {
            whole = format!("{shorter}}}");
        }
        assert_eq!(whole, "@f:{\"a\": 1}", "{form:?}");
    }
}

#[test]
fn one_call_is_enough_if_only_one_was_asked_for() {
    let mut reading = reading(CallForm::Hermes, &["f"]);
    reading.single = true;
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    check(&reading, &format!("{call}{call}"), "@f:{}");
}

#[test]
fn ids_fit_the_template() {
    assert_eq!(CallForm::Mistral { named: false }.call_id(BASE, 1), "012345601");
    assert_eq!(CallForm::Hermes.call_id(BASE, 0), "call_0123456789abcdef01234500");
}

const FRAGMENTS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|channel|>",
    "commentary to=functions.f",
    "analysis",
    "<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "```json\n",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"a\": \"é\\\"\"}",
    "{\"name\": \"x\"",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    " ",
    "\n",
    "f",
    "é<",
];

proptest::proptest! {
    #[test]
    fn parts_do_not_depend_on_where_text_is_cut(
        words in proptest::collection::vec(proptest::sample::select(FRAGMENTS), 0..24),
        form in 0_usize..8,
        with_tools in proptest::bool::ANY,
        thinking in proptest::bool::ANY,
        size in 1_usize..9,
    ) {
        let forms = [
            CallForm::Hermes,
            CallForm::Llama3,
            CallForm::Json,
            CallForm::Mistral { named: false },
            CallForm::Mistral { named: true },
            CallForm::DeepSeek { fenced: true },
            CallForm::DeepSeek { fenced: false },
            CallForm::Harmony,
        ];
        let mut reading = reading(forms[form], if with_tools { &["f"] } else { &[] });
        reading.thinking = thinking;
        let text = words.concat();
        proptest::prop_assert_eq!(parts(&reading, &text, size), parts(&reading, &text, usize::MAX), "{}", text);
    }
}
