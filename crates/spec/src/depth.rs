//! What the depth of a chunk in its prompt adds to its time: attention looks at everything before it.
//!
//! Owns: seconds for each row and position, by the chunk's length. They differ: llama.cpp attends with 64 rows and more
//! on a CPU several times faster than with fewer, so that a chunk of 32 rows deep in a prompt can take longer than one of
//! 64. Does not know what calls take without it.

use crate::pace::moved;

/// Lengths are told apart by the power of two below them.
const KINDS: usize = 16;
/// Weight of a new measurement.
const NEW: f64 = 0.3;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depth {
    seconds: [Option<f64>; KINDS],
}

impl Depth {
    /// A chunk of `n_rows` in the middle of which `position` positions are looked back at took so many `seconds` more than
    /// at the beginning of a prompt.
    pub(crate) fn observe(&mut self, n_rows: u32, position: f64, seconds: f64) {
        let found = (seconds / (f64::from(n_rows.max(1)) * position.max(1.0))).max(0.0);
        let known = &mut self.seconds[kind(n_rows)];
        *known = Some(match *known {
            Some(before) if before > 0.0 => moved(before, found, NEW),
            _ => found,
        });
    }

    /// Whether chunks as long as this were measured.
    pub(crate) fn knows(&self, n_rows: u32) -> bool {
        self.seconds[kind(n_rows)].is_some()
    }

    /// Seconds that such a chunk takes longer there. Lengths that were not measured are taken for like the next longer
    /// one, or else the next shorter one.
    pub(crate) fn time(&self, n_rows: u32, position: f64) -> f64 {
        let (shorter, longer) = self.seconds.split_at(kind(n_rows));
        let found = longer.iter().find_map(|&found| found);
        let found = found.or_else(|| shorter.iter().rev().find_map(|&found| found));
        found.unwrap_or(0.0) * f64::from(n_rows) * position
    }
}

fn kind(n_rows: u32) -> usize {
    (n_rows.max(1).ilog2() as usize).min(KINDS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_was_not_measured_is_like_its_neighbours() {
        let mut depth = Depth::default();
        assert_eq!(depth.time(64, 1000.0), 0.0);
        depth.observe(16, 1000.0, 0.16);
        let close = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        assert!(close(depth.time(16, 2000.0), 0.32) && close(depth.time(64, 1000.0), 0.64));
        depth.observe(128, 1000.0, 0.128);
        assert!(close(depth.time(64, 1000.0), 0.064) && close(depth.time(16, 1000.0), 0.16));
        assert!(close(depth.time(4, 1000.0), 0.04) && depth.knows(31) && !depth.knows(32));
    }

    #[test]
    fn one_disturbed_call_changes_little() {
        let mut depth = Depth::default();
        depth.observe(64, 1000.0, 0.1);
        depth.observe(64, 1000.0, 10.0);
        assert!(depth.time(64, 1000.0) < 0.17);
        (0..20).for_each(|_| depth.observe(64, 1000.0, 0.2));
        assert!((depth.time(64, 1000.0) - 0.2).abs() < 0.01);
    }
}
