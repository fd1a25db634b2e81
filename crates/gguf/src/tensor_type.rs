//! The ways tensor elements are stored: block sizes and bytes of every type of the pinned llama.cpp, as data.

use std::fmt;

/// How a tensor's elements are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TensorType(&'static Row);

#[derive(PartialEq, Eq)]
struct Row {
    id: u32,
    name: &'static str,
    block: u64,
    bytes: u64,
}

const fn row(id: u32, name: &'static str, block: u64, bytes: u64) -> Row {
    Row { id, name, block, bytes }
}

/// From `ggml.c` (`type_traits`) and `ggml-common.h` (`block_*`); numbers missing here were removed from the format.
static TYPES: [Row; 35] = [
    row(0, "f32", 1, 4),
    row(1, "f16", 1, 2),
    row(2, "q4_0", 32, 18),
    row(3, "q4_1", 32, 20),
    row(6, "q5_0", 32, 22),
    row(7, "q5_1", 32, 24),
    row(8, "q8_0", 32, 34),
    row(9, "q8_1", 32, 36),
    row(10, "q2_K", 256, 84),
    row(11, "q3_K", 256, 110),
    row(12, "q4_K", 256, 144),
    row(13, "q5_K", 256, 176),
    row(14, "q6_K", 256, 210),
    row(15, "q8_K", 256, 292),
    row(16, "iq2_xxs", 256, 66),
    row(17, "iq2_xs", 256, 74),
    row(18, "iq3_xxs", 256, 98),
    row(19, "iq1_s", 256, 50),
    row(20, "iq4_nl", 32, 18),
    row(21, "iq3_s", 256, 110),
    row(22, "iq2_s", 256, 82),
    row(23, "iq4_xs", 256, 136),
    row(24, "i8", 1, 1),
    row(25, "i16", 1, 2),
    row(26, "i32", 1, 4),
    row(27, "i64", 1, 8),
    row(28, "f64", 1, 8),
    row(29, "iq1_m", 256, 56),
    row(30, "bf16", 1, 2),
    row(34, "tq1_0", 256, 54),
    row(35, "tq2_0", 256, 66),
    row(39, "mxfp4", 32, 17),
    row(40, "nvfp4", 64, 36),
    row(41, "q1_0", 128, 18),
    row(42, "q2_0", 64, 18),
];

impl TensorType {
    /// 32-bit floats.
    pub const F32: Self = Self(&TYPES[0]);
    /// 16-bit floats.
    pub const F16: Self = Self(&TYPES[1]);
    /// Blocks of 32 4-bit values with a half-precision scale.
    pub const Q4_0: Self = Self(&TYPES[2]);
    /// Blocks of 32 8-bit values with a half-precision scale.
    pub const Q8_0: Self = Self(&TYPES[6]);

    /// The type with this number in the file, if this llama.cpp knows it.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.binary_search_by_key(&id, |row| row.id).ok().map(|i| Self(&TYPES[i]))
    }

    /// Its number in the file (and in `ggml_type`).
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0.id
    }

    /// Its usual name, as in "q4_K".
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Elements per block; a row holds whole blocks.
    #[must_use]
    pub const fn block_elements(self) -> u64 {
        self.0.block
    }

    /// Bytes per block.
    #[must_use]
    pub const fn block_bytes(self) -> u64 {
        self.0.bytes
    }

    /// Bytes of a row of `n` elements; none if `n` is not a multiple of the block or the product overflows.
    #[must_use]
    pub const fn row_bytes(self, n: u64) -> Option<u64> {
        if n.is_multiple_of(self.0.block) { (n / self.0.block).checked_mul(self.0.bytes) } else { None }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_ordered_so_that_it_can_be_searched() {
        assert!(TYPES.is_sorted_by(|a, b| a.id < b.id));
        let named = [TensorType::F32, TensorType::F16, TensorType::Q4_0, TensorType::Q8_0];
        assert_eq!(named.map(TensorType::name), ["f32", "f16", "q4_0", "q8_0"]);
        for row in &TYPES {
            assert_eq!(TensorType::from_id(row.id).map(TensorType::name), Some(row.name));
        }
        assert_eq!(TensorType::from_id(4), None);
        assert_eq!(TensorType::from_id(u32::MAX), None);
    }

    #[test]
    fn rows_hold_whole_blocks() {
        assert_eq!(TensorType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(TensorType::Q4_0.row_bytes(33), None);
        assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
    }
}
