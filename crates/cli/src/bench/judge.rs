//! Whether a text is what was asked: a small model that repeats itself makes guessing look better than it is.

use std::collections::BTreeSet;

use ring::digest::{Context, SHA256};
use serde_json::Deserializer;

use super::workload::Wanted;

/// Words in what is counted as one repetition.
const GRAM: usize = 3;

/// Share of the runs of three words that occur for the first time, 0 to 1; 1 for texts that are shorter.
pub(super) fn distinct_3grams(text: &str) -> f64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let n = words.len().saturating_sub(GRAM - 1);
    if n == 0 {
        return 1.0;
    }
    let distinct: BTreeSet<&[&str]> = words.windows(GRAM).collect();
    distinct.len() as f64 / n as f64
}

/// How far an answer is what was asked, 0 to 1, where a program can tell. `ended` says that it ended by itself, rather
/// than where it was cut off.
///
/// Of a text to be repeated: the share of its words that come in the right order. Of JSON: 1 if it is, or begins as, JSON.
pub(super) fn as_asked(answer: &str, wanted: &Wanted, ended: bool) -> Option<f64> {
    match wanted {
        Wanted::Anything => None,
        Wanted::Json => Some(f64::from(u8::from(is_json(unfenced(answer), ended)))),
        Wanted::Text { text, .. } => {
            let said: Vec<&str> = unfenced(answer).split_whitespace().collect();
            let mut wanted: Vec<&str> = text.split_whitespace().collect();
            if !ended {
                wanted.truncate(said.len().max(1));
            }
            Some(common(&said, &wanted) as f64 / wanted.len().max(said.len()).max(1) as f64)
        }
    }
}

/// Whether the change that was asked for has been made; `None` if there was none to make.
pub(super) fn change_made(answer: &str, wanted: &Wanted) -> Option<bool> {
    match wanted {
        Wanted::Text { change: Some(change), .. } => Some(answer.contains(change)),
        _ => None,
    }
}

/// SHA-256 of texts with a zero byte between each and the next, in hexadecimal.
pub(super) fn sha256<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Context::new(&SHA256);
    for (at, text) in texts.enumerate() {
        if at > 0 {
            hash.update(&[0]);
        }
        hash.update(text.as_bytes());
    }
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What stands in a fenced block, if the answer begins with one, to its end or that of the answer.
fn unfenced(answer: &str) -> &str {
    let answer = answer.trim();
    let Some((_, inner)) = answer.strip_prefix("```").and_then(|rest| rest.split_once('\n')) else {
        return answer;
    };
    inner.split_once("\n```").map_or(inner, |(inner, _)| inner)
}

fn is_json(text: &str, ended: bool) -> bool {
    if !text.starts_with(['[', '{']) {
        return false;
    }
    match Deserializer::from_str(text).into_iter::<serde_json::Value>().next() {
        None => false,
        Some(Ok(_)) => true,
        // Cut off in the middle.
        Some(Err(error)) => error.is_eof() && !ended,
    }
}

/// Length of the longest common subsequence.
fn common(a: &[&str], b: &[&str]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (at, other) in b.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if word == other { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Wanted {
        Wanted::Text { text: text.into(), change: Some("d") }
    }

    #[test]
    fn a_text_that_repeats_itself_has_few_distinct_runs() {
        assert_eq!(distinct_3grams("a b c d e"), 1.0);
        assert_eq!(distinct_3grams("a b"), 1.0);
        assert_eq!(distinct_3grams("a a a a a a"), 0.25);
    }

    #[test]
    fn a_copy_is_judged_by_the_words_in_order() {
        let wanted = text("a b c d");
        assert_eq!(as_asked("a b c d", &wanted, true), Some(1.0));
        assert_eq!(as_asked("a b", &wanted, false), Some(1.0));
        assert_eq!(as_asked("a b", &wanted, true), Some(0.5));
        assert_eq!(as_asked("a b a b a b a b", &wanted, false), Some(0.25));
        assert_eq!(as_asked("", &wanted, true), Some(0.0));
        assert_eq!((change_made("a b", &wanted), change_made("c d", &wanted)), (Some(false), Some(true)));
        assert_eq!(change_made("a", &Wanted::Anything), None);
    }

    #[test]
    fn json_may_be_fenced_and_cut_off() {
        let judge = |text: &str, ended| as_asked(text, &Wanted::Json, ended);
        assert_eq!(judge("```json\n[{\"a\": 1}]\n```", true), Some(1.0));
        assert_eq!(judge("[{\"a\": 1}, {\"b", false), Some(1.0));
        assert_eq!(judge("[{\"a\": 1}, {\"b", true), Some(0.0));
        assert_eq!(judge("[{a: 1}]", true), Some(0.0));
        assert_eq!(judge("Sure! []", true), Some(0.0));
        assert_eq!(as_asked("x", &Wanted::Anything, true), None);
    }

    #[test]
    fn hashes_tell_where_texts_end() {
        let hash = |texts: &[&str]| sha256(texts.iter().copied());
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(&["abc"]), known);
    }
}
