//! How many sequences' windows share a call of the first stage.
//!
//! If everything that is ready shared one call, it would walk down the line alone and the stages would take turns; if
//! nothing did, every stage would read its weights once per sequence. In between lies the best size of a group, found
//! from what the stages measured.

use spec::Pace;

/// What runs: so many sequences, each with so many windows in flight of so many rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) sequences: u32,
    pub(crate) depth: f64,
    pub(crate) width: u32,
}

/// Another size must be faster by this factor to be worth a change: measurements differ that much from call to call.
const WORTH: f64 = 1.03;

/// The size of a group, 1 to [`Load::sequences`]; `now` is what it may be at present.
///
/// With groups of `g` sequences, `n d / g` of them are under way. All have passed a stage once every
/// `n d / g * slowest(g w)`, and no group is round the line faster than `loop(g w)`: the larger of the two is the time
/// in which every window is answered once.
pub(crate) fn together(load: Load, now: u32, pace: &Pace) -> u32 {
    let Load { sequences, depth, width } = load;
    let most = sequences.max(1);
    if !pace.is_known() {
        return most.div_ceil(pace.n_stages().max(1) as u32);
    }
    let turn = |size: u32| {
        let rows = size * width.max(1);
        let groups = f64::from(most) * depth.max(1.0) / f64::from(size);
        (groups * pace.busy().slowest(rows)).max(pace.busy().loop_time(rows))
    };
    let mut best = (most, turn(most));
    let mut size = most;
    while size > 1 {
        // The next size that makes another number of groups.
        size = most.div_ceil(most.div_ceil(size) + 1).min(size - 1);
        let took = turn(size);
        if took < best.1 {
            best = (size, took);
        }
    }
    if turn(now.min(most)) <= best.1 * WORTH { now.min(most) } else { best.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::StageTiming;

    use super::*;

    /// Stages that take 2 ms and `more` us for each row beyond the first, `link_ms` on all links together.
    fn pace(n_stages: usize, more: u32, link_ms: u64) -> Pace {
        let mut pace = Pace::new(n_stages as u16);
        for rows in [1, 2, 3, 4, 6, 8, 12, 16, 32] {
            let compute_us = 2000 + more * (rows - 1);
            let timings = vec![StageTiming { queue_us: 0, compute_us, batch_rows: rows }; n_stages];
            let inside = Duration::from_micros(u64::from(compute_us) * n_stages as u64);
            (0..40).for_each(|_| pace.observe(&timings, inside + Duration::from_millis(link_ms), false));
        }
        pace
    }

    fn best(sequences: u32, depth: f64, pace: &Pace) -> u32 {
        together(Load { sequences, depth, width: 1 }, u32::MAX, pace)
    }

    #[test]
    fn as_many_groups_as_stages_when_links_cost_nothing() {
        for n_stages in [2, 4] {
            let pace = pace(n_stages, 500, 0);
            assert_eq!(best(8, 1.0, &pace), 8 / n_stages as u32);
            assert_eq!(best(1, 1.0, &pace), 1);
        }
    }

    #[test]
    fn links_want_more_groups_and_windows_in_flight_fewer() {
        let far = pace(2, 500, 12);
        assert!(best(8, 1.0, &far) < 4, "groups fill the links too");
        assert_eq!(best(8, 4.0, &pace(2, 500, 0)), 8, "each sequence fills the line by itself");
    }

    #[test]
    fn a_stage_alone_takes_everything() {
        assert_eq!(best(8, 1.0, &pace(1, 500, 0)), 8);
    }

    #[test]
    fn a_size_is_kept_until_another_is_clearly_better() {
        let pace = pace(2, 500, 0);
        let load = Load { sequences: 9, depth: 1.0, width: 1 };
        assert_eq!(together(load, 9, &pace), 5, "a convoy is not kept");
        assert_eq!(together(load, 5, &pace), 5);
        assert_eq!(together(Load { sequences: 10, ..load }, 5, &pace), 5);
        assert_eq!(together(Load { sequences: 3, ..load }, 5, &pace), 2, "nor a size that nothing fills");
    }

    #[test]
    fn what_is_unknown_is_shared_out_among_the_stages() {
        assert_eq!(best(9, 1.0, &Pace::new(4)), 3);
    }
}
