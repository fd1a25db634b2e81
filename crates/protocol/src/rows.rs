//! Hidden rows on the wire: dtype, packing and unpacking. Rows are dense, row-major, little-endian.

use bytes::Bytes;
use half::{bf16, f16};

use crate::limits;

/// How one hidden row is stored on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowDtype {
    /// 32-bit floats: exact.
    #[default]
    F32,
    /// Half precision.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// One 32-bit scale per row, then one signed byte per value: `value = scale * byte`.
    Q8,
}

impl RowDtype {
    /// Bytes of one row of `width` values.
    #[must_use]
    pub const fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => 4 * width,
            Self::F16 | Self::Bf16 => 2 * width,
            Self::Q8 => 4 + width,
        }
    }
}

/// Packed rows of one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    dtype: RowDtype,
    width: u32,
    n_rows: u32,
    data: Bytes,
}

/// Rows whose claims about themselves do not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// More rows or wider rows than [`limits`] allows, or none at all.
    #[error("{n_rows} rows of {width} are out of bounds")]
    Bounds {
        /// Claimed number of rows.
        n_rows: u32,
        /// Claimed width.
        width: u32,
    },
    /// The data has another length than rows, width and dtype say.
    #[error("{got} bytes of rows, expected {expected}")]
    Length {
        /// What rows, width and dtype say.
        expected: usize,
        /// What is there.
        got: usize,
    },
}

impl Rows {
    /// Wraps packed data.
    ///
    /// # Errors
    /// If the numbers are out of bounds or do not add up to the data's length.
    pub fn new(dtype: RowDtype, width: u32, n_rows: u32, data: Bytes) -> Result<Self, RowError> {
        if n_rows == 0 || width == 0 || n_rows > limits::MAX_ROWS || width > limits::MAX_ROW_WIDTH {
            return Err(RowError::Bounds { n_rows, width });
        }
        let expected = n_rows as usize * dtype.row_bytes(width as usize);
        if data.len() != expected {
            return Err(RowError::Length { expected, got: data.len() });
        }
        Ok(Self { dtype, width, n_rows, data })
    }

    /// Packs `values`, whole rows of `width`.
    ///
    /// # Errors
    /// If `values` is not a whole number of rows within bounds.
    pub fn pack(dtype: RowDtype, width: u32, values: &[f32]) -> Result<Self, RowError> {
        let n_rows = u32::try_from(values.len() / (width.max(1) as usize)).unwrap_or(u32::MAX);
        let mut data = Vec::with_capacity(n_rows as usize * dtype.row_bytes(width as usize));
        for row in values.chunks(width.max(1) as usize) {
            pack_row(dtype, row, &mut data);
        }
        Self::new(dtype, width, n_rows, data.into())
    }

    /// Appends the unpacked values to `out`: `n_rows * width` of them.
    pub fn unpack_into(&self, out: &mut Vec<f32>) {
        out.reserve(self.n_rows as usize * self.width as usize);
        let words = |i: &[u8]| [i[0], i[1]];
        match self.dtype {
            RowDtype::F32 => {
                out.extend(self.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            }
            RowDtype::F16 => {
                out.extend(self.data.chunks_exact(2).map(|b| f16::from_le_bytes(words(b)).to_f32()));
            }
            RowDtype::Bf16 => {
                out.extend(self.data.chunks_exact(2).map(|b| bf16::from_le_bytes(words(b)).to_f32()));
            }
            RowDtype::Q8 => {
                for row in self.data.chunks_exact(self.dtype.row_bytes(self.width as usize)) {
                    let scale = f32::from_le_bytes([row[0], row[1], row[2], row[3]]);
                    out.extend(row[4..].iter().map(|&b| scale * f32::from(b.cast_signed())));
                }
            }
        }
    }

    /// How the rows are stored.
    #[must_use]
    pub const fn dtype(&self) -> RowDtype {
        self.dtype
    }

    /// Values per row.
    #[must_use]
    pub const fn width(&self) -> u32 {
        self.width
    }

    /// Number of rows.
    #[must_use]
    pub const fn n_rows(&self) -> u32 {
        self.n_rows
    }

    /// The packed bytes.
    #[must_use]
    pub const fn data(&self) -> &Bytes {
        &self.data
    }
}

fn pack_row(dtype: RowDtype, row: &[f32], out: &mut Vec<u8>) {
    match dtype {
        RowDtype::F32 => {
            // One value after another would look for room each time; so it is a copy.
            let start = out.len();
            out.resize(start + 4 * row.len(), 0);
            let places = out[start..].chunks_exact_mut(4);
            places.zip(row).for_each(|(place, v)| place.copy_from_slice(&v.to_le_bytes()));
        }
        RowDtype::F16 => row.iter().for_each(|&v| out.extend_from_slice(&f16::from_f32(v).to_le_bytes())),
        RowDtype::Bf16 => row.iter().for_each(|&v| out.extend_from_slice(&bf16::from_f32(v).to_le_bytes())),
        RowDtype::Q8 => {
            let largest = row.iter().fold(0.0_f32, |a, v| a.max(v.abs()));
            let scale = largest / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            out.extend_from_slice(&scale.to_le_bytes());
            out.extend(
                row.iter().map(|v| ((v * inverse).round().clamp(-127.0, 127.0) as i8).cast_unsigned()),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(dtype: RowDtype, values: &[f32], width: u32) -> Vec<f32> {
        let mut out = Vec::new();
        Rows::pack(dtype, width, values).unwrap().unpack_into(&mut out);
        out
    }

    #[test]
    fn f32_rows_survive_bit_for_bit() {
        let values = [0.1, -2.5e-20, f32::MAX, -0.0, 3.0, 1e-38];
        let back = round_trip(RowDtype::F32, &values, 3);
        assert!(values.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn narrow_rows_stay_within_their_precision() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) * 0.37).collect();
        for (dtype, relative) in [(RowDtype::F16, 1.0 / 1024.0), (RowDtype::Bf16, 1.0 / 128.0)] {
            for (a, b) in values.iter().zip(round_trip(dtype, &values, 32)) {
                assert!((a - b).abs() <= a.abs() * relative, "{dtype:?} {a} {b}");
            }
        }
        for (row, back) in values.chunks(32).zip(round_trip(RowDtype::Q8, &values, 32).chunks(32)) {
            let step = row.iter().fold(0.0_f32, |a, v| a.max(v.abs())) / 127.0;
            assert!(row.iter().zip(back).all(|(a, b)| (a - b).abs() <= 0.501 * step));
        }
    }

    #[test]
    fn rows_of_zeros_stay_zeros() {
        assert_eq!(round_trip(RowDtype::Q8, &[0.0; 8], 4), [0.0; 8]);
    }

    #[test]
    fn claims_that_do_not_add_up_are_refused() {
        let data = Bytes::from_static(&[0; 16]);
        assert_eq!(
            Rows::new(RowDtype::F32, 2, 3, data.clone()),
            Err(RowError::Length { expected: 24, got: 16 })
        );
        assert!(Rows::new(RowDtype::F32, 0, 1, data.clone()).is_err());
        assert!(Rows::new(RowDtype::F32, u32::MAX, u32::MAX, data).is_err());
        assert!(Rows::pack(RowDtype::F32, 4, &[1.0; 6]).is_err());
    }
}
