//! Sampling noise keyed by position, so that the token at a position does not depend on how often, or in what
//! company, its logits were computed.
//!
//! The token is `argmax_i (log p_i + g_i)` with independent standard Gumbel `g_i`, which draws from `p` (Gumbel 1954;
//! the "Gumbel-max trick"). A drafter that adds the *same* noise to its own distribution agrees with the target with
//! probability about `(1 - TV) / (1 + TV)` (Daliri, Musco, Suresh 2024).

use crate::{Position, Token};

/// Upper bound of [`Noise::gumbel`]: the uniforms below have 32 bits, so the largest is `1 - 2^-33`
/// and `-ln(-ln(1 - 2^-33)) = 22.87…`. A candidate whose score plus this bound is below the best can be skipped.
pub const GUMBEL_MAX: f64 = 22.874;

/// The noise of one (seed, choice, position).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: u64,
}

/// Draws that are not tied to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Whether XTC applies at this position.
    Xtc,
}

impl Noise {
    /// The noise that decides the token at `position`.
    #[must_use]
    pub const fn new(seed: u64, choice: u32, position: Position) -> Self {
        let key = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
        Self { key: mix(key ^ ((choice as u64) << 32 | position.0 as u64)) }
    }

    /// Standard Gumbel noise of one token, at most [`GUMBEL_MAX`].
    #[must_use]
    pub fn gumbel(self, token: Token) -> f64 {
        -(-self.uniform(u64::from(token.0.cast_unsigned())).ln()).ln()
    }

    /// The random bits behind [`Noise::gumbel`], which grows with them. Much cheaper: no logarithm.
    #[must_use]
    pub const fn bits(self, token: Token) -> u32 {
        self.bits_at(token.0.cast_unsigned() as u64)
    }

    /// A uniform in (0, 1) that is independent of every token's noise.
    #[must_use]
    pub fn draw(self, draw: Draw) -> f64 {
        match draw {
            Draw::Xtc => self.uniform(1 << 32),
        }
    }

    fn uniform(self, counter: u64) -> f64 {
        (f64::from(self.bits_at(counter)) + 0.5) / 4_294_967_296.0
    }

    const fn bits_at(self, counter: u64) -> u32 {
        (mix(self.key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 32) as u32
    }
}

/// The fewest [`Noise::bits`] with which [`Noise::gumbel`] can reach `bound`: a token with fewer stays below it, also
/// after rounding (the margin of 1e-6 is far above the error of two logarithms).
#[must_use]
pub fn bits_to_reach(bound: f64) -> u32 {
    let uniform = (-(-(bound - 1e-6)).exp()).exp();
    // A cast of floats saturates: below 0 to 0, which every token has.
    (uniform * 4_294_967_296.0 - 1.0).floor() as u32
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection on 64 bits.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_a_function_of_its_key() {
        let noise =
            |seed, choice, position| Noise::new(seed, choice, Position(position)).gumbel(Token(7)).to_bits();
        assert_eq!(noise(1, 0, 5), noise(1, 0, 5));
        let keys = [(1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6), (0, 0, 0)];
        let all: std::collections::BTreeSet<_> = keys.iter().map(|&(s, c, p)| noise(s, c, p)).collect();
        assert_eq!(all.len(), keys.len());
    }

    #[test]
    fn noise_has_the_mean_and_variance_of_a_gumbel() {
        let n = 200_000;
        let (mut sum, mut squares, mut largest) = (0.0, 0.0, f64::MIN);
        for position in 0..n / 100 {
            for token in 0..100 {
                let g = Noise::new(42, 0, Position(position)).gumbel(Token(token));
                (sum, squares, largest) = (sum + g, squares + g * g, largest.max(g));
            }
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.577_215_66).abs() < 0.01, "{mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.03, "{variance}");
        assert!(largest < GUMBEL_MAX);
    }

    #[test]
    fn the_bound_is_reached_by_the_largest_uniform_only() {
        let largest = (f64::from(u32::MAX) + 0.5) / 4_294_967_296.0;
        let bound = -(-largest.ln()).ln();
        assert!(bound <= GUMBEL_MAX && GUMBEL_MAX - bound < 0.01, "{bound}");
    }

    #[test]
    fn a_token_with_too_few_bits_stays_below_the_bound() {
        let mut reached = 0;
        for step in 0..2700 {
            let bound = f64::from(step) * 0.01 - 4.0;
            let fewest = bits_to_reach(bound);
            for token in (0..200).map(Token) {
                let noise = Noise::new(7, 0, Position(step));
                assert!(noise.gumbel(token) < bound || noise.bits(token) >= fewest, "{token} at {bound}");
                reached += u32::from(noise.bits(token) >= fewest && noise.gumbel(token) < bound - 1e-5);
            }
        }
        assert_eq!(reached, 0, "the bound is as tight as its margin");
        assert_eq!((bits_to_reach(-10.0), bits_to_reach(f64::NEG_INFINITY)), (0, 0));
        assert!(bits_to_reach(GUMBEL_MAX) >= u32::MAX - 8);
    }

    #[test]
    fn tokens_are_drawn_in_proportion() {
        let p: [f64; 4] = [0.5, 0.25, 0.15, 0.1];
        let mut counts = [0_u32; 4];
        for position in 0..40_000 {
            let noise = Noise::new(9, 0, Position(position));
            let score = |i: usize| p[i].ln() + noise.gumbel(Token(i as i32));
            counts[(0..4).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap()] += 1;
        }
        let chi: f64 =
            (0..4).map(|i| (f64::from(counts[i]) - 40_000.0 * p[i]).powi(2) / (40_000.0 * p[i])).sum();
        assert!(chi < 16.27, "chi-square with 3 degrees of freedom at p = 0.001: {chi}, {counts:?}");
    }
}
