//! What fuzzing of grammars begins with, and what comes of it by chance: it is followed or refused, soon.

#[expect(dead_code, reason = "nothing is written here: these are by hand")]
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use protocol::{Grammar, GrammarKind};

use crate::testing::{END, grammars};
use crate::tests::wander;
use crate::{GrammarError, Grammars};

/// What the fuzz target reads: a byte for the kind, and the text.
fn grammar(input: &[u8]) -> Grammar {
    let kinds = [GrammarKind::JsonSchema, GrammarKind::Regex, GrammarKind::Lark, GrammarKind::Gbnf];
    let (kind, text) = input.split_first().unwrap();
    Grammar::new(kinds[usize::from(*kind) % kinds.len()], String::from_utf8_lossy(text))
}

#[test]
fn fuzzing_begins_with_grammars_of_each_kind_to_follow_and_to_refuse() {
    let grammars = grammars();
    for (name, input) in seeds::of("grammar_text") {
        let started = grammars.start(&grammar(&input)).map(drop);
        assert_eq!(started.is_err(), name.starts_with("refused_"), "{name}: {started:?}");
    }
}

/// One with a few bytes changed, and perhaps a part of another one of its kind in it.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<_> = seeds::of("grammar_text").into_values().collect();
    let others = all.clone();
    let byte = prop_oneof![any::<u8>(), select(b"(){}[]|*+?.,:\"\\09a ".to_vec())];
    let changes = prop::collection::vec((any::<Index>(), byte), 0..4);
    let part = (any::<Index>(), any::<Index>(), any::<Index>(), any::<Index>());
    (select(all), changes, prop::option::of(part)).prop_map(move |(mut input, changes, part)| {
        let text = |at: Index, of: &[u8]| 1 + at.index(of.len() - 1);
        changes.into_iter().for_each(|(at, with)| {
            let at = text(at, &input);
            input[at] = with;
        });
        if let Some((other, from, to, at)) = part {
            let alike: Vec<_> = others.iter().filter(|other| other[0] == input[0]).collect();
            let other = other.get(&alike);
            let (from, to) = (text(from, other), text(to, other));
            let at = text(at, &input);
            input.splice(at..at, other[from.min(to)..from.max(to)].iter().copied());
        }
        input
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_grammar_that_was_changed_is_followed_or_refused(input in changed()) {
        static GRAMMARS: LazyLock<Grammars> = LazyLock::new(grammars);
        let grammar = grammar(&input);
        if GRAMMARS.start(&grammar).is_ok() {
            let walked = wander(&GRAMMARS, &grammar, 20);
            // An end token that the grammar itself names is among those that may come, but cannot be said in its middle.
            let is_fine = matches!(
                walked,
                Ok(()) | Err(GrammarError::TooComplex { .. } | GrammarError::Left { token: END })
            );
            prop_assert!(is_fine, "{walked:?}");
        }
    }
}
