//! What fuzzing of segments begins with: where the bytes are cut, then what a peer sends.

#[path = "../../../../../fuzz/src/seeds.rs"]
mod files;

use super::framing::events;
use crate::link::{Heartbeat, Received, inbox::Event, segment::Header};

/// Within the first header, so that it is put together from two reads.
const CUT: u8 = 9;

fn control(header: Header) -> Vec<u8> {
    header.encode().to_vec()
}

/// A piece of a frame, as short as a test likes.
fn piece(stream: u64, frame: &str, from: usize, to: usize) -> Vec<u8> {
    let (offset, total, len) = (from as u32, frame.len() as u32, (to - from) as u32);
    [&Header::Data { stream, offset, total, len }.encode()[..], &frame.as_bytes()[from..to]].concat()
}

fn close(reason: &str) -> Vec<u8> {
    [&Header::Close { len: reason.len() as u32 }.encode()[..], reason.as_bytes()].concat()
}

/// Everything that a peer may say, and what is heard of it.
fn good() -> Vec<(&'static str, Vec<u8>, Vec<Event>)> {
    let frame = |stream, text: &'static str| Event::Frame(Received { stream, bytes: text.as_bytes().into() });
    let beat = Heartbeat::default();
    let (long, other) = ("a frame in three pieces", "another one in two");
    vec![
        ("frame", piece(1, "one frame", 0, 9), vec![frame(1, "one frame")]),
        ("frame_empty", piece(2, "", 0, 0), vec![frame(2, "")]),
        (
            "frames_in_turn",
            [
                piece(3, long, 0, 7),
                piece(4, other, 0, 11),
                piece(3, long, 7, 10),
                piece(4, other, 11, other.len()),
                piece(3, long, 10, long.len()),
            ]
            .concat(),
            vec![frame(4, other), frame(3, long)],
        ),
        ("ping", control(Header::Ping { number: 5, beat }), vec![Event::Ping { number: 5, beat }]),
        ("pong", control(Header::Pong { number: 6 }), vec![Event::Pong { number: 6 }]),
        ("close", close("enough"), vec![Event::Close { reason: "enough".to_owned() }]),
        (
            "all",
            [
                control(Header::Pong { number: 7 }),
                control(Header::Ping { number: 8, beat }),
                piece(9, long, 0, long.len()),
                close(""),
            ]
            .concat(),
            vec![
                Event::Pong { number: 7 },
                Event::Ping { number: 8, beat },
                frame(9, long),
                Event::Close { reason: String::new() },
            ],
        ),
    ]
}

#[test]
fn fuzzing_of_segments_begins_with_everything_that_a_peer_may_say() {
    let mut seeds = files::Seeds::new();
    for (name, bytes, heard) in good() {
        let (first, second) = bytes.split_at(CUT.into());
        assert_eq!(events(&[first.to_vec(), second.to_vec()]), Ok(heard), "{name}");
        seeds.insert(name.to_owned(), [&[CUT], &bytes[..]].concat());
    }
    // Good at the start of a link only, where the handshake takes it.
    seeds.insert("welcome".to_owned(), [&[CUT], &control(Header::Welcome)[..]].concat());
    files::are_current("segments", &seeds);
}
