//! The two quantisers that toys need, as in `ggml-quants.c` (`quantize_row_*_ref`).

use half::f16;

const BLOCK: usize = 32;

/// Blocks of a half-precision scale and 32 signed bytes.
pub(super) fn q8_0(values: &[f32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() / BLOCK * (2 + BLOCK));
    for block in values.as_chunks::<BLOCK>().0 {
        let largest = block.iter().fold(0_f32, |largest, v| largest.max(v.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        out.extend_from_slice(&f16::from_f32(scale).to_le_bytes());
        out.extend(block.iter().map(|v| ((v * inverse).round() as i8).cast_unsigned()));
    }
    out
}

/// Blocks of a half-precision scale and 32 half bytes, offset by 8; the first 16 values in the lower halves.
pub(super) fn q4_0(values: &[f32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() / BLOCK * (2 + BLOCK / 2));
    for block in values.as_chunks::<BLOCK>().0 {
        let largest =
            block.iter().fold(0_f32, |largest, v| if v.abs() > largest.abs() { *v } else { largest });
        let scale = largest / -8.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let level = |v: f32| ((v * inverse + 8.5) as u8).min(15);
        out.extend_from_slice(&f16::from_f32(scale).to_le_bytes());
        let (low, high) = block.split_at(BLOCK / 2);
        out.extend(low.iter().zip(high).map(|(&low, &high)| level(low) | level(high) << 4));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(block: &[u8]) -> f32 {
        f16::from_le_bytes([block[0], block[1]]).to_f32()
    }

    fn values() -> Vec<f32> {
        (0..64).map(|i| (i as f32 * 0.7).sin() * if i < 32 { 1.0 } else { 20.0 }).collect()
    }

    #[test]
    fn bytes_come_back_within_half_a_step() {
        let values = values();
        for (block, want) in q8_0(&values).chunks(34).zip(values.chunks(32)) {
            for (level, want) in block[2..].iter().zip(want) {
                let got = scale(block) * f32::from(level.cast_signed());
                assert!((got - want).abs() <= 0.51 * scale(block).abs() + want.abs() * 1e-3, "{got} {want}");
            }
        }
    }

    #[test]
    fn half_bytes_come_back_within_a_step() {
        let values = values();
        for (block, want) in q4_0(&values).chunks(18).zip(values.chunks(32)) {
            for (i, &pair) in block[2..].iter().enumerate() {
                for (level, want) in [(pair & 15, want[i]), (pair >> 4, want[i + 16])] {
                    let got = scale(block) * (f32::from(level) - 8.0);
                    // The largest value of the other sign is clamped, at most a whole step away.
                    assert!((got - want).abs() <= 1.01 * scale(block).abs(), "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        let zeros = q4_0(&[0.0; 32]);
        assert_eq!((zeros.len(), scale(&zeros)), (18, 0.0));
        assert_eq!(q8_0(&[0.0; 32]), vec![0; 34]);
    }
}
