//! Several blocks that draft, one behind the other.

use gguf::toy::{repeat_layer, swap_layers};

use super::*;

/// Blocks of both toys.
const FIRST: u32 = 8;
const BLOCKS: u32 = 3;

/// What is computed in turn behind a prompt: how many rows are right, how many guesses behind them are wrong, and how many
/// tokens are drafted then. Drafts are short for longer than a call has rows, and long afterwards.
const ROUNDS: [(usize, usize, usize); 12] = [
    (1, 0, 1),
    (2, 3, 1),
    (1, 1, 3),
    (4, 0, 0),
    (5, 4, 2),
    (3, 0, 1),
    (15, 1, 1),
    (12, 3, 1),
    (1, 2, 3),
    (2, 2, 2),
    (16, 0, 0),
    (2, 1, 3),
];

/// The drafts of these rounds and the logits that they were chosen from; `tends` after every call.
fn rounds(line: &mut Line, tends: bool) -> Vec<(Vec<i32>, Vec<Vec<f32>>)> {
    let text = tokens(90, gguf::toy::VOCABULARY as usize, 21);
    let mut at = 20;
    line.prefill(&text[..at], CHUNK);
    let mut found = vec![];
    for (n_right, n_wrong, n_drafted) in ROUNDS {
        let mut window = text[at..at + n_right].to_vec();
        window.extend(&[7, 8, 9, 10][..n_wrong]);
        line.window(at, &window);
        at += n_right;
        if tends {
            line.tail_mut().tend();
        }
        if n_drafted > 0 {
            found.push(draft(line.tail_mut(), 0, (at, text[at]), n_drafted));
        }
        line.truncate(at);
    }
    found
}

/// A file beside a toy's, made of it.
fn changed(bench: &Bench, change: impl Fn(&Model, &std::path::Path)) -> Line {
    let path = bench.folder().join("changed.gguf");
    change(&Model::open(&bench.whole).unwrap(), &path);
    Line::load(&[path], &exact()).unwrap()
}

/// A chain of equal blocks drafts what one such block drafts alone, token after token: so each block is given what the ones
/// before it have read and left, and knows everything before, whatever was asked of the others in between.
#[test]
fn a_chain_of_equal_blocks_drafts_as_one_block_does() {
    for name in CHAINS {
        let bench = alike(name);
        let mut chain =
            changed(&bench, |model, path| repeat_layer(model, FIRST, &[FIRST + 1, FIRST + 2], path).unwrap());
        let mut alone =
            changed(&bench, |model, path| gguf::toy::fewer_blocks(model, FIRST + 1, path).unwrap());
        let (found, expected) = (rounds(&mut chain, false), rounds(&mut alone, false));
        for (round, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.0, expected.0, "{name}: draft {round}");
            assert_eq!(difference(&found.1, &expected.1), 0.0, "{name}: draft {round}");
        }
        assert_eq!(found.len(), expected.len());
    }
}

/// A toy whose blocks are of one shape.
fn alike(name: &str) -> Bench {
    let toy = Toy::named(name).unwrap();
    let folder = Bench::new(toy);
    let change = |m: &mut gguf::Metadata| {
        if name == "step35-nextn" {
            let windows = [true, true, false, true, true, true, false, true, true, true, true];
            m.set("step35.attention.sliding_window_pattern", gguf::Value::bools(&windows));
            m.set("step35.attention.head_count", gguf::Value::u32s(&[6, 6, 4, 6, 6, 6, 4, 6, 6, 6, 6]));
        }
    };
    let meta = folder.folder().join("meta.gguf");
    toy.write_changed(&[], &meta, change).unwrap();
    toy.write_changed(&llama::required_tensors(&meta).unwrap(), &folder.whole, change).unwrap();
    folder
}

#[test]
fn each_token_of_a_chain_comes_from_a_block_of_its_own() {
    let bench = Bench::new(Toy::named("mimo2-nextn").unwrap());
    let text = tokens(30, gguf::toy::VOCABULARY as usize, 22);
    let of = |mut line: Line| {
        line.prefill(&text[..20], CHUNK);
        draft(line.tail_mut(), 0, (20, text[20]), MOST).1
    };
    let own = of(whole(&bench, &exact()));
    assert_eq!(own.len(), BLOCKS as usize, "as long as the chain");
    let swapped = |a, b| of(changed(&bench, |model, path| swap_layers(model, a, b, path).unwrap()));
    let (late, early) = (swapped(FIRST + 1, FIRST + 2), swapped(FIRST, FIRST + 1));
    assert_eq!(late[0], own[0]);
    assert_ne!(late[1], own[1]);
    assert_ne!(early[0], own[0]);
}

/// Blocks may be told late, and together with others.
#[test]
fn when_a_block_is_told_changes_nothing() {
    for name in CHAINS {
        let bench = Bench::new(Toy::named(name).unwrap());
        let late = rounds(&mut staged(&bench, &exact()), false);
        assert!(late == rounds(&mut staged(&bench, &exact()), true), "{name}");
    }
}
