//! What any forecast must get right, and what the comparison leaves out.

use forecast::{Case, Grid, Job, Kind, compare, run};
use spec::{Reach, Speculate};

use crate::bench::{Shape, line};

#[test]
fn a_forecast_depends_on_its_inputs_alone() {
    let line = line(3, 4.0, Shape::PerRow(0.3), 5.0);
    let workloads = [Kind::Code.workload(5, 200), Kind::Chat.workload(6, 200)];
    let job = Job { workloads: &workloads, clients: 2 };
    let forecast = || format!("{:?}", run(&line, job, &Speculate::auto()));
    assert_eq!(forecast(), forecast());
}

#[test]
fn plain_decoding_takes_the_loop_for_each_token() {
    let line = line(4, 5.0, Shape::PerRow(0.5), 10.0);
    let workload = [Kind::Novel.workload(7, 200)];
    let plain = run(&line, Job { workloads: &workload, clients: 1 }, &Speculate::off());
    let token = 1.0 / plain.decode_rate;
    assert!((token - line.loop_time(1).as_secs_f64()).abs() < 1e-6, "{token}");
}

#[test]
fn windows_beyond_those_that_fill_the_line_bring_nothing() {
    for shape in [Shape::Stairs, Shape::PerRow(0.0)] {
        let line = line(3, 5.0, shape, 2.0);
        for kind in [Kind::Copy, Kind::Edit, Kind::Code] {
            let case = Case::text(kind, 4, 400, 1);
            let grid = Grid { widths: vec![1, 2, 4, 16], depths: vec![1, 2, 3, 4, 5, 6, 8, 12, 16] };
            let row = compare(&line, &case, &grid, &|| {});
            for &width in &grid.widths {
                let tried = || row.sweep.iter().filter(|choice| choice.width == width);
                let best = tried().map(|choice| choice.rate).fold(0.0, f64::max);
                let deepest = tried().map(|choice| choice.depth).max().unwrap();
                assert!(deepest < 8, "a line of three stages is soon full");
                for &depth in grid.depths.iter().filter(|&&depth| depth > deepest) {
                    let reach = Reach { width: Some(width), depth: Some(depth), ..Reach::default() };
                    let speculate = Speculate { reach, ..Speculate::auto() };
                    let job = Job { workloads: &case.workloads, clients: 1 };
                    let rate = run(&line, job, &speculate).decode_rate;
                    assert!(rate <= 1.005 * best, "{} {width} {depth}: {rate} over {best}", row.name);
                }
            }
        }
    }
}
