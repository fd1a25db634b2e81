//! Drafts behind a prefix that was computed before: those of a text that begins with nothing.

use super::*;

/// Tokens that two texts share, as a long system prompt.
const SHARED: usize = 1000;

fn roomy() -> EngineConfig {
    EngineConfig { context: 1200, max_rows: 64, ..exact() }
}

/// A text of which the first `n_shared` tokens are the same for all, and the others depend on `seed`.
fn text(n_shared: usize, n: usize, seed: u64) -> Vec<i32> {
    let vocabulary = gguf::toy::VOCABULARY as usize;
    [tokens(n_shared, vocabulary, 1), tokens(n - n_shared, vocabulary, seed)].concat()
}

/// Whether two runs agree in all that was drafted and computed.
fn same(found: &Run, expected: &Run, what: &str) {
    assert_eq!(found.drafts, expected.drafts, "{what}");
    assert_eq!(found.tokens, expected.tokens, "{what}");
    assert_eq!(difference(&found.draft_logits, &expected.draft_logits), 0.0, "{what}");
    assert_eq!(difference(&found.logits, &expected.logits), 0.0, "{what}");
}

/// All ways in which a sequence begins with what another one has computed and goes on otherwise. Its last shared token is
/// computed again.
#[test]
fn behind_a_long_prefix_it_drafts_as_it_does_cold() {
    let len = SHARED + 12;
    let (first, second) = (text(SHARED, len, 2), text(SHARED, len, 3));
    for name in ["hy_v3-nextn", "glm4moe-nextn"] {
        let bench = Bench::new(Toy::named(name).unwrap());
        let cold = generate(&mut staged(&bench, &roomy()), 0, &second, 40, true);
        assert!(cold.right >= 8 && cold.drafts.len() >= 10, "{name}: {} guesses were right", cold.right);
        let start = SHARED - 1;
        let mut line = staged(&bench, &roomy());
        generate(&mut line, 1, &first, 40, true);
        let saved = line.save(1);

        line.cut(1, start);
        same(&go_on(&mut line, 1, &second, start, 40, true), &cold, &format!("{name}: in its slot"));

        line.load_saved(2, &saved);
        line.cut(2, start);
        same(&go_on(&mut line, 2, &second, start, 40, true), &cold, &format!("{name}: as a copy"));

        // A copy of a sequence that is still in its prompt, which goes on itself.
        line.cut(0, 0);
        fill(&mut line, 0, &first[..=SHARED], 0);
        let running = line.save(0);
        line.load_saved(2, &running);
        line.cut(2, start);
        same(&go_on(&mut line, 2, &second, start, 40, true), &cold, &format!("{name}: of one that runs"));
        let own = generate(&mut staged(&bench, &roomy()), 0, &first, 40, true);
        same(&go_on(&mut line, 0, &first, SHARED, 40, true), &own, &format!("{name}: the one that ran"));

        let mut anew = staged(&bench, &roomy());
        anew.load_saved(0, &saved);
        anew.cut(0, start);
        same(&go_on(&mut anew, 0, &second, start, 40, true), &cold, &format!("{name}: from a store"));
    }
}

/// Of a hybrid model a prefix serves whole, and at its end the rows are kept.
#[test]
fn behind_a_prefix_that_serves_whole_it_drafts_as_it_does_cold() {
    let bench = Bench::new(Toy::named("qwen35-nextn").unwrap());
    let text = text(SHARED, SHARED + 12, 3);
    let cold = generate(&mut staged(&bench, &roomy()), 0, &text, 40, true);
    let mut line = staged(&bench, &roomy());
    fill(&mut line, 0, &text[..=SHARED], 0);
    let saved = line.save(0);
    same(&go_on(&mut line, 0, &text, SHARED, 40, true), &cold, "in its slot");
    line.load_saved(1, &saved);
    same(&go_on(&mut line, 1, &text, SHARED, 40, true), &cold, "as a copy");
}

/// Near the end of what is held and far from it, twice in a row, and with other tokens behind the cut than before.
#[test]
fn wherever_it_is_cut_it_drafts_as_it_does_cold() {
    let bench = Bench::new(Toy::named("hy_v3-nextn").unwrap());
    let vocabulary = gguf::toy::VOCABULARY as usize;
    let mut held = tokens(140, vocabulary, 9);
    let mut line = staged(&bench, &exact());
    line.prefill(&held[..130], CHUNK);
    for (cuts, seed) in [(vec![128], 1), (vec![90], 2), (vec![20], 3), (vec![15, 9], 4), (vec![1], 5)] {
        cuts.iter().for_each(|&at| line.truncate(at));
        let at = *cuts.last().unwrap();
        // The token at the cut stays, as where a sequence begins with a prefix.
        held = [&held[..=at], &tokens(139 - at, vocabulary, seed)].concat();
        line.prefill_from(&held[..130], at, CHUNK);
        let found = draft(line.tail_mut(), 0, (130, held[130]), 3);
        let mut fresh = staged(&bench, &exact());
        fresh.prefill(&held[..130], CHUNK);
        assert_eq!(found, draft(fresh.tail_mut(), 0, (130, held[130]), 3), "cut at {cuts:?}");
    }
    // Another token where much is cut: it drafts, but what it knows of that token is not all.
    line.truncate(30);
    held[30] = (held[30] + 1) % vocabulary as i32;
    line.prefill_from(&held[..40], 30, CHUNK);
    assert_eq!(draft(line.tail_mut(), 0, (40, held[40]), 3).0.len(), 3);
}

/// A slot that served one sequence serves another: of the row that its block begins with nothing is left.
#[test]
fn in_a_slot_that_was_emptied_it_drafts_as_in_a_fresh_one() {
    let vocabulary = gguf::toy::VOCABULARY as usize;
    for name in MODELS {
        let bench = Bench::new(Toy::named(name).unwrap());
        let mut line = staged(&bench, &exact());
        let mut fresh = staged(&bench, &exact());
        for (slot, n_before) in [(0, 40), (1, 7), (0, 21)] {
            let before = tokens(n_before, vocabulary, 20 + n_before as u64);
            generate(&mut line, slot, &before, 5, true);
            line.cut(slot, 0);
            let text = tokens(12, vocabulary, 30 + n_before as u64);
            let found = generate(&mut line, slot, &text, 12, true);
            same(&found, &generate(&mut fresh, slot, &text, 12, true), &format!("{name}: slot {slot}"));
            line.cut(slot, 0);
            fresh = staged(&bench, &exact());
        }
    }
}
