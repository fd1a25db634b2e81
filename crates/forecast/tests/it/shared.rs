//! Stages that share a machine's processors: what runs ahead on one of them takes time from the others.

use forecast::{Case, Comparison, Grid, LineModel, compare};

use crate::bench::{Shape, line, texts};

/// Processors of the machine.
const PROCESSORS: usize = 2;
/// Numbers of stages, and what `auto` is over plain decoding at least. It has to find out what company costs, and the
/// first answer of a line pays for it: the more, the more stages share a processor.
const OVER_PLAIN: [(u16, f64); 3] = [(2, 0.98), (4, 0.98), (8, 0.95)];

#[test]
fn auto_is_never_slower_than_plain_on_stages_that_share_processors() {
    let grid = Grid { widths: [1, 4].into(), depths: [1, 4].into() };
    let cases: Vec<Case> = texts(1);
    let mut losers = Vec::new();
    for (n_stages, over_plain) in OVER_PLAIN {
        for delay in [0.0, 2.0, 10.0] {
            let own = line(n_stages, 8.0 / f64::from(n_stages), Shape::Stairs, delay);
            let shared = LineModel { processors: Some(PROCESSORS), ..own };
            println!("\n{n_stages} stages, {delay} ms apart\n{}", Comparison::head());
            for case in &cases {
                let row = compare(&shared, case, &grid, &|| {});
                println!("{row}");
                if row.over_plain() < over_plain {
                    losers.push(format!("{n_stages} stages, {delay} ms apart: {row}"));
                }
            }
        }
    }
    assert!(losers.is_empty(), "{losers:#?}");
}
