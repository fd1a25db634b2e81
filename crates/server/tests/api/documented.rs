//! Whether `docs/api.md` says what the figures of an answer mean.

use serde_json::{Value, json};

use crate::fake::{Harness, answer};

const DOCUMENT: &str = include_str!("../../../../docs/api.md");

/// Names of all figures, with their paths as the document writes them.
fn names(at: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let dot = if at.is_empty() { "" } else { "." };
            map.iter().for_each(|(name, value)| names(&format!("{at}{dot}{name}"), value, out));
        }
        Value::Array(list) if !list.is_empty() => names(&format!("{at}[]"), &list[0], out),
        _ => out.push(at.to_owned()),
    }
}

fn has_row(name: &str) -> bool {
    DOCUMENT.lines().any(|line| line.starts_with("| ") && line.contains(&format!("`{name}`")))
}

#[tokio::test]
async fn every_field_of_the_line_has_a_row() {
    let mut line = Harness::new([]).get("/v1/line").await.json();
    // The second stage has what the first lacks.
    let more = line["stages"][1].as_object().unwrap().clone();
    line["stages"][0].as_object_mut().unwrap().extend(more.into_iter().filter(|(name, _)| name != "work"));
    let mut found = Vec::new();
    names("", &line, &mut found);
    assert!(found.contains(&"stages[].advice".to_owned()), "{found:?}");
    for name in found {
        let name = name.replace(".suffix", ".NAME").replace(".mtp", ".NAME");
        assert!(has_row(&name), "docs/api.md does not say what `{name}` of the line means");
    }
}

#[tokio::test]
async fn every_property_has_a_row() {
    let props = Harness::new([]).get("/props").await.json();
    let mut found = Vec::new();
    names("", &props, &mut found);
    assert!(found.contains(&"modalities.vision".to_owned()), "{found:?}");
    for name in found {
        // Those have tables of their own.
        let name = if name.contains(".params.") { "default_generation_settings.params" } else { &name };
        assert!(has_row(name), "docs/api.md does not say what `{name}` of the properties means");
    }
}

#[tokio::test]
async fn every_figure_of_an_answer_has_a_row() {
    let whole = Harness::new([answer("x")]).chat(json!({})).await.json();
    let mut found = Vec::new();
    for part in ["timings", "usage"] {
        names("", &whole[part], &mut found);
    }
    assert!(found.contains(&"stages[].compute_ms".to_owned()), "{found:?}");
    for name in found.iter().filter(|name| !["total_tokens", "sources"].contains(&name.as_str())) {
        assert!(has_row(name), "docs/api.md does not say what `{name}` means");
    }
}
