//! Random numbers that are the same on every machine: a function of seed and names.

/// A stream of numbers (SplitMix64; Steele, Lea, Flood 2014).
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64, model: &str, tensor: &str) -> Self {
        let name = blake3::hash(format!("{seed}/{model}/{tensor}").as_bytes());
        Self { state: u64::from_le_bytes(*name.as_bytes().first_chunk().expect("a hash has 32 bytes")) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Mean 0, deviation 1, at most 3.47 from 0: the sum of four uniforms, whose variance is a third. Needs no
    /// logarithm, which may differ between machines.
    pub(super) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u32 = (0..4).map(|i| u32::from((bits >> (16 * i)) as u16)).sum();
        // Four uniforms on 0..=65535 sum to twice 65535 on average.
        (sum as f32 - 131_070.0) * (3_f32.sqrt() / 65_536.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(1, "model", "tensor");
        let n = 100_000;
        let values: Vec<f64> = (0..n).map(|_| f64::from(random.normal())).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|v| v * v).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert!(values.iter().all(|v| v.abs() < 3.47));
    }

    #[test]
    fn seed_model_and_tensor_each_change_the_numbers() {
        let first = |seed, model, tensor| Random::new(seed, model, tensor).next();
        let all = [first(1, "a", "b"), first(2, "a", "b"), first(1, "c", "b"), first(1, "a", "c")];
        assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])));
        assert_eq!(first(1, "a", "b"), all[0]);
    }
}
