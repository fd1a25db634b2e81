//! Models whose layers look back over a window only: they can still be cut and gone on from anywhere.

use gguf::{Model, Source};
use llama::EngineConfig;
use protocol::Position;
use stage::{Engine, Rewind};

use crate::support::{GEMMA3, Line, cut, difference, model, tokens};

/// Of Gemma 3 270M.
const WINDOW: usize = 512;
const CHUNK: usize = 128;

/// Two stages of Gemma 3, exact.
fn gemma() -> (tempfile::TempDir, Line) {
    let folder = tempfile::tempdir().unwrap();
    let whole = Model::open(&model(GEMMA3)).unwrap();
    assert_eq!(whole.arch_u32("attention.sliding_window"), Some(WINDOW as u32));
    let (slices, _) = cut(&Source::new(&whole).unwrap(), &[9], folder.path());
    let config = EngineConfig {
        context: 1024,
        n_slots: 2,
        max_rows: CHUNK as u32,
        threads: 2,
        exact: true,
        ..EngineConfig::new(&slices[0])
    };
    let line = Line::load(&slices, &config).unwrap();
    (folder, line)
}

#[test]
fn a_cut_beyond_the_window_leaves_what_was_there_before() {
    let (_folder, mut line) = gemma();
    let text = tokens(WINDOW + 200, 200_000, 1);
    let other = tokens(60, 200_000, 2);
    // What lies before the cut at 50 left every window long ago.
    line.prefill(&text[..50], CHUNK);
    let fresh = line.window(50, &other);
    line.truncate(0);
    line.prefill(&text, CHUNK);
    line.truncate(50);
    let rewound = line.window(50, &other);
    assert_eq!(difference(&rewound, &fresh), 0.0);
}

#[test]
fn a_prefix_longer_than_the_window_is_gone_on_from_where_its_shape_says() {
    let (_folder, mut line) = gemma();
    let text = tokens(WINDOW + 200, 200_000, 3);
    let other = tokens(40, 200_000, 4);
    let fresh = |line: &mut Line, start: usize| {
        line.truncate(0);
        line.prefill(&[&text[..start], &other[..1]].concat(), CHUNK);
        line.window(start + 1, &other[1..])
    };
    // How much is saved, and from where it is gone on.
    for (len, start) in
        [(text.len(), text.len()), (WINDOW + 7, WINDOW + 7), (WINDOW, 90), (text.len(), WINDOW + 7)]
    {
        let expected = fresh(&mut line, start);
        line.truncate(0);
        line.prefill(&text[..len], CHUNK);
        let saved = line.save(0);
        line.load_saved(0, &saved);
        line.truncate(start);
        let (first, rest) = other.split_at(1);
        line.window(start, first);
        let found = difference(&line.window(start + 1, rest), &expected);
        let serves = line.tail().shape().rewind.serves(Position(len as u32), Position(start as u32));
        assert_eq!(found == 0.0, serves, "{len} saved, from {start}: {found}");
    }
}

#[test]
fn nothing_is_forgotten() {
    let (_folder, line) = gemma();
    assert_eq!(line.tail().shape().rewind, Rewind::InPlace { window: WINDOW as u32 });
}
