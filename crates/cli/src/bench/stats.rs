//! Medians of few, noisy measurements, and how far they can be trusted.

use serde::Serialize;

/// Each side of the interval leaves out this probability: together 90 % are inside.
const TAIL: f64 = 0.05;
/// Above this many values the smallest binomial weight is no longer a normal number.
const MOST: usize = 1000;

/// The median of a sample with a 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Median {
    /// The middle value.
    pub(super) median: f64,
    /// The true median is below this with a probability of at most 5 %...
    pub(super) low: f64,
    /// ...and above this likewise. Both are values of the sample; fewer than 5 cannot support an interval, so that it
    /// spans all of them.
    pub(super) high: f64,
    /// Values in the sample.
    pub(super) n: usize,
}

impl Median {
    /// Of 1 to 1000 values. The interval is the classical one by order statistics: it assumes that the values are
    /// independent, and nothing about how they are distributed.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        let n = values.len();
        assert!((1..=MOST).contains(&n), "a median of {n} values");
        values.sort_by(f64::total_cmp);
        let cut = outside(n);
        Self { median: quantile(&values, 0.5), low: values[cut], high: values[n - 1 - cut], n }
    }
}

/// How many values to leave out on each side: the most for which the chance that only so many values lie on that side
/// of the median, P(Binomial(n, 1/2) <= cut), stays within [`TAIL`]; none if even that of no value does not.
fn outside(n: usize) -> usize {
    let mut weight = 0.5_f64.powi(n as i32);
    let mut up_to = weight;
    let mut cut = 0;
    while cut + 1 < n.div_ceil(2) {
        weight *= (n - cut) as f64 / (cut + 1) as f64;
        up_to += weight;
        if up_to > TAIL {
            break;
        }
        cut += 1;
    }
    cut
}

/// The value below which a `share` of the ascending values lies, between neighbours in proportion.
pub(super) fn quantile(ascending: &[f64], share: f64) -> f64 {
    let at = share * (ascending.len() - 1) as f64;
    let (below, above) = (ascending[at.floor() as usize], ascending[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_between_its_neighbours() {
        assert_eq!(Median::of(vec![3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Median::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.99), 9.9);
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Largest ranks with a two-sided confidence of at least 90 %, from tables of the sign test.
        for (n, rank) in [(5, 1), (8, 2), (10, 2), (11, 3), (15, 4), (20, 6), (25, 8), (30, 11)] {
            let sample = Median::of((1..=n).map(f64::from).collect());
            assert_eq!((sample.low, sample.high), (f64::from(rank), f64::from(n + 1 - rank)), "{n}");
        }
    }

    #[test]
    fn few_values_span_their_whole_range() {
        for n in 1..5 {
            let sample = Median::of((1..=n).map(f64::from).collect());
            assert_eq!((sample.low, sample.high), (1.0, f64::from(n)));
        }
    }

    #[test]
    fn many_values_still_have_an_interval() {
        let sample = Median::of((0..1000).map(f64::from).collect());
        assert!(sample.low > 470.0 && sample.high < 530.0, "{sample:?}");
    }
}
