//! The only source of chance in a simulation: a seed decides everything.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A generator of its own, so that what one part draws does not depend on how often another does.
    pub(crate) const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Between `min` and `max`, both included.
    pub(crate) const fn between(&mut self, min: u32, max: u32) -> u32 {
        min + (self.next() % (max - min + 1) as u64) as u32
    }

    /// True in so many of a hundred cases.
    pub(crate) const fn percent(&mut self, share: u32) -> bool {
        self.next() % 100 < share as u64
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    pub(crate) const fn micros(&mut self, min: u32, max: u32) -> Duration {
        Duration::from_micros(self.between(min, max) as u64)
    }
}

/// The finaliser of SplitMix64, a bijection on 64 bits.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash of two numbers that tells them apart from each other and from their swap.
pub(crate) const fn mix2(a: u64, b: u64) -> u64 {
    mix(mix(a.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ b)
}
