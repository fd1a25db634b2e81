//! What was promised for lines of four stages.

use forecast::{Case, Comparison, Grid, Kind, compare};

use crate::bench::{SERIAL, STAGES, TOKENS, geometric_mean, line, texts};

#[test]
fn four_stages_ten_milliseconds_apart_win_what_was_promised() {
    let serial = Grid { widths: SERIAL.into(), depths: vec![1] };
    for (one, shape) in STAGES {
        println!("\n{one} ms, {shape:?}\n{}", Comparison::head());
        let line = line(4, one, shape, 10.0);
        let mut rows: Vec<_> = texts(2).iter().map(|case| compare(&line, case, &serial, &|| {})).collect();
        rows.iter().for_each(|row| println!("{row}"));
        for row in rows.iter().filter(|row| ["copy", "edit"].contains(&row.name.as_str())) {
            assert!(row.over_plain() >= 4.0, "{row}");
        }
        assert!(rows[0].over_serial() >= 1.5, "{}", rows[0]);
        // `predicted` is `edit` with a word from the client: they are one kind of work.
        rows.retain(|row| row.name != Kind::Predicted.name());
        let mean = geometric_mean(&rows, Comparison::over_plain);
        assert!(mean >= 1.8, "{mean:.2} x plain");
        let mean = geometric_mean(&rows, Comparison::over_serial);
        assert!(mean >= 1.1, "{mean:.2} x serial");
    }
}

#[test]
fn forty_milliseconds_are_hidden_from_a_copy() {
    for (one, shape) in STAGES {
        let line = line(4, one, shape, 40.0);
        let copy = Case::text(Kind::Copy, 3, TOKENS, 1);
        let row = compare(&line, &copy, &Grid { widths: vec![], depths: vec![] }, &|| {});
        assert!(row.over_plain() >= 6.0, "{one} ms, {shape:?}: {row}");
    }
}
