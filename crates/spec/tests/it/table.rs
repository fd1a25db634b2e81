//! What each verdict does in each situation, as a table to be read.

use std::fmt::Write as _;

use protocol::{End, Epoch, Position, Token, WindowId};
use spec::{Pipeline, Setup};

use crate::tail::{SEQ, verdict};

/// One move of a script.
enum Move {
    /// Send a window of at most this many rows with this proposal.
    Send(usize, &'static [i32]),
    /// A verdict on window `.0` with these tokens.
    Verdict(u32, &'static [i32], Option<End>),
    /// As `Verdict`, with another epoch and base than the window's.
    Forged(u32, Epoch, Position),
}
use Move::{Forged, Send, Verdict};

/// Prompt 1 2 3 (anchor 3 at position 2), vocabulary 100, limit 10, at most 3 live windows.
fn play(moves: &[Move]) -> String {
    let setup = Setup { seq: SEQ, n_vocab: 100, limit: Position(10), max_in_flight: 3 };
    let mut pipeline = Pipeline::new(setup, [1, 2, 3].map(Token).to_vec());
    let mut sent = Vec::new();
    let mut out = String::new();
    let tokens = |ids: &[i32]| ids.iter().copied().map(Token).collect::<Vec<_>>();
    for step in moves {
        let before = state(&pipeline);
        let (event, outcome) = match step {
            Send(width, proposal) => {
                let outcome = match pipeline.next_window(*width, &tokens(proposal)) {
                    Ok(Some(window)) => {
                        let ids: Vec<i32> = window.tokens.iter().map(|token| token.0).collect();
                        let ahead = if window.run_ahead { " ahead" } else { "" };
                        let line = format!(
                            "window {} e{} at {} {ids:?}{ahead}",
                            window.window, window.epoch, window.base
                        );
                        sent.push(window);
                        line
                    }
                    Ok(None) => "nothing to send".into(),
                    Err(error) => format!("refused: {error}"),
                };
                (format!("send {width} {proposal:?}"), outcome)
            }
            Verdict(window, ids, ended) => {
                let template = sent.iter().find(|sent| sent.window == WindowId(*window)).unwrap_or(&sent[0]);
                let mut verdict = verdict(template, &tokens(ids), *ended);
                verdict.window = WindowId(*window);
                let end = ended.map_or_else(String::new, |end| format!(" {end:?}"));
                (format!("verdict {window} {ids:?}{end}"), answer(&mut pipeline, &verdict))
            }
            Forged(window, epoch, base) => {
                let mut verdict = verdict(&sent[*window as usize], &[Token(4)], None);
                (verdict.epoch, verdict.base) = (*epoch, *base);
                (format!("verdict {window} e{epoch} at {base}"), answer(&mut pipeline, &verdict))
            }
        };
        writeln!(out, "  {before:<38} | {event:<38} | {outcome}").expect("a string takes everything");
    }
    writeln!(out, "  {}", state(&pipeline)).expect("a string takes everything");
    out
}

fn state(pipeline: &Pipeline) -> String {
    let (n, sent) = (pipeline.committed().len(), pipeline.optimistic().len() - pipeline.committed().len());
    format!("e{} {n}+{sent} tokens, {}/{} live", pipeline.epoch(), pipeline.n_live(), pipeline.n_in_flight())
}

fn answer(pipeline: &mut Pipeline, verdict: &protocol::Verdict) -> String {
    match pipeline.handle_verdict(verdict) {
        Ok(commit) => {
            let opened = commit.opened.map_or_else(String::new, |epoch| format!(", opens e{epoch}"));
            format!(
                "commits {}, proposed {}, stale {}{opened}",
                verdict.tokens.len(),
                commit.n_accepted,
                commit.n_stale
            )
        }
        Err(fault) => format!("fault: {fault}"),
    }
}

#[test]
fn state_table() {
    let scripts: &[(&str, &[Move])] = &[
        (
            "plain decoding stays in one epoch",
            &[
                Send(1, &[]),
                Send(1, &[]),
                Verdict(0, &[4], None),
                Send(1, &[]),
                Verdict(1, &[5], Some(End::EndOfGeneration)),
                Send(1, &[]),
            ],
        ),
        (
            "windows of an epoch tile the positions",
            &[
                Send(3, &[4, 5, 6]),
                Send(2, &[6, 7]),
                Send(2, &[]),
                Verdict(0, &[4, 5, 6], None),
                Verdict(1, &[7, 8], None),
                Send(2, &[9]),
            ],
        ),
        (
            "a contradiction inside a window opens an epoch",
            &[
                Send(3, &[4, 5]),
                Send(3, &[6, 7]),
                Verdict(0, &[4, 9], None),
                Send(2, &[8]),
                Verdict(2, &[8, 7], None),
            ],
        ),
        (
            "a contradiction by the first token of the next window opens an epoch",
            &[
                Send(3, &[4, 5]),
                Send(3, &[6, 7]),
                Verdict(0, &[4, 5, 9], None),
                Send(2, &[]),
                Verdict(2, &[8], None),
            ],
        ),
        (
            "a contradiction with nothing behind it leaves nothing stale",
            &[Send(2, &[4]), Verdict(0, &[5], None), Send(2, &[6])],
        ),
        (
            "stale windows do not count against the depth",
            &[
                Send(2, &[4]),
                Send(1, &[5]),
                Send(1, &[6]),
                Send(1, &[7]),
                Verdict(0, &[9], None),
                Send(2, &[4]),
                Send(1, &[5]),
                Send(1, &[6]),
                Send(1, &[7]),
                Verdict(3, &[4, 5], None),
            ],
        ),
        (
            "an end leaves what runs ahead behind",
            &[
                Send(2, &[4]),
                Send(2, &[5, 6]),
                Verdict(0, &[4], Some(End::EndOfGeneration)),
                Verdict(1, &[5], None),
                Send(1, &[]),
            ],
        ),
        (
            "no row is sent beyond the limit",
            &[
                Send(16, &[4, 5, 6, 7, 8, 9, 10, 11]),
                Send(4, &[10]),
                Verdict(0, &[4, 5, 6, 7, 8, 9, 10], None),
                Verdict(0, &[4, 5], Some(End::Limit)),
                Verdict(0, &[4, 5, 6, 7, 8, 9, 10], Some(End::Limit)),
            ],
        ),
        (
            "proposals outside the vocabulary are refused",
            &[Send(3, &[4, 100]), Send(3, &[-1]), Send(2, &[4, 100])],
        ),
        (
            "impossible verdicts are faults and change nothing",
            &[
                Send(3, &[4, 5]),
                Send(2, &[6, 7]),
                Verdict(0, &[], None),
                Verdict(0, &[4, 5, 6, 7], None),
                Verdict(0, &[9, 5], None),
                Verdict(0, &[4], None),
                Verdict(0, &[4, 100], None),
                Verdict(0, &[4, -1], None),
                Verdict(1, &[6], None),
                Verdict(2, &[4], None),
                Forged(0, Epoch(1), Position(2)),
                Forged(0, Epoch(0), Position(3)),
                Verdict(0, &[4, 9], None),
                Verdict(1, &[6], None),
                Verdict(0, &[4], None),
            ],
        ),
    ];
    let mut table = String::new();
    for (title, moves) in scripts {
        write!(table, "{title}\n{}\n", play(moves)).expect("a string takes everything");
    }
    insta::assert_snapshot!(table);
}

#[test]
#[should_panic(expected = "a prompt leaves room for one token below the limit")]
fn a_prompt_that_fills_the_limit_is_a_bug_of_the_caller() {
    let setup = Setup { seq: SEQ, n_vocab: 100, limit: Position(3), max_in_flight: 1 };
    let _ = Pipeline::new(setup, [1, 2, 3].map(Token).to_vec());
}
