//! A cursor over a message's bytes with one getter per kind of field. Every getter names the field in its error.

use super::DecodeError;
use crate::{Epoch, Generation, PeerIndex, Position, SeqId, StageIndex, Token, WindowId, limits};

pub(super) type Field = &'static str;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    pub(super) const fn finish(&self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            extra => Err(DecodeError::Trailing { extra }),
        }
    }

    pub(super) fn take(&mut self, field: Field, n: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n).ok_or(DecodeError::Truncated { field })?;
        self.at += n;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: Field) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(field, N)?);
        Ok(out)
    }

    pub(super) fn u8(&mut self, field: Field) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u16(&mut self, field: Field) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u32(&mut self, field: Field) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: Field) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn i32(&mut self, field: Field) -> Result<i32, DecodeError> {
        Ok(i32::from_le_bytes(self.array(field)?))
    }

    fn f32(&mut self, field: Field) -> Result<f32, DecodeError> {
        Ok(f32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u8_in(&mut self, field: Field, min: u8, max: u8) -> Result<u8, DecodeError> {
        let value = self.u8(field)?;
        in_range(field, value.into(), min.into(), max.into())?;
        Ok(value)
    }

    pub(super) fn u16_in(&mut self, field: Field, min: u16, max: u16) -> Result<u16, DecodeError> {
        let value = self.u16(field)?;
        in_range(field, value.into(), min.into(), max.into())?;
        Ok(value)
    }

    pub(super) fn u32_in(&mut self, field: Field, min: u32, max: u32) -> Result<u32, DecodeError> {
        let value = self.u32(field)?;
        in_range(field, value.into(), min.into(), max.into())?;
        Ok(value)
    }

    pub(super) fn i32_from(&mut self, field: Field, min: i32) -> Result<i32, DecodeError> {
        let value = self.i32(field)?;
        in_range(field, value.into(), min.into(), i32::MAX.into())?;
        Ok(value)
    }

    pub(super) fn flag(&mut self, field: Field) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::UnknownTag { field, tag }),
        }
    }

    pub(super) fn finite(&mut self, field: Field) -> Result<f32, DecodeError> {
        let value = self.f32(field)?;
        if value.is_finite() { Ok(value) } else { Err(DecodeError::NotFinite { field }) }
    }

    /// A finite number or negative infinity: a log-probability, a bias.
    pub(super) fn log_weight(&mut self, field: Field) -> Result<f32, DecodeError> {
        let value = self.f32(field)?;
        if value < f32::INFINITY { Ok(value) } else { Err(DecodeError::NotFinite { field }) }
    }

    pub(super) fn token(&mut self, field: Field) -> Result<Token, DecodeError> {
        Ok(Token(self.i32_from(field, 0)?))
    }

    /// A position or the end of a range of positions.
    pub(super) fn place(&mut self, field: Field) -> Result<Position, DecodeError> {
        Ok(Position(self.u32_in(field, 0, limits::MAX_CONTEXT)?))
    }

    pub(super) fn seq(&mut self, field: Field) -> Result<SeqId, DecodeError> {
        Ok(SeqId(self.u64(field)?))
    }

    pub(super) fn epoch(&mut self, field: Field) -> Result<Epoch, DecodeError> {
        Ok(Epoch(self.u32_in(field, 0, limits::MAX_EPOCH)?))
    }

    pub(super) fn window(&mut self, field: Field) -> Result<WindowId, DecodeError> {
        Ok(WindowId(self.u32_in(field, 0, limits::MAX_WINDOW)?))
    }

    pub(super) fn generation(&mut self, field: Field) -> Result<Generation, DecodeError> {
        Ok(Generation(self.u64(field)?))
    }

    pub(super) fn stage(&mut self, field: Field) -> Result<StageIndex, DecodeError> {
        Ok(StageIndex(self.u16_in(field, 0, limits::MAX_STAGES - 1)?))
    }

    pub(super) fn peer(&mut self, field: Field) -> Result<PeerIndex, DecodeError> {
        Ok(PeerIndex(self.u16_in(field, 0, limits::MAX_PEERS - 1)?))
    }

    fn count(&mut self, field: Field, limit: usize) -> Result<usize, DecodeError> {
        let count = self.u32(field)?;
        if count as usize > limit {
            return Err(DecodeError::TooMany { field, count, limit: limit as u32 });
        }
        Ok(count as usize)
    }

    pub(super) fn text(&mut self, field: Field, limit: usize) -> Result<String, DecodeError> {
        let n = self.count(field, limit)?;
        let text = std::str::from_utf8(self.take(field, n)?).map_err(|_| DecodeError::NotText { field })?;
        Ok(text.to_owned())
    }

    /// Entries of at least `entry_bytes` each: room is made only for entries whose bytes are there.
    pub(super) fn list<T>(
        &mut self,
        field: Field,
        limit: usize,
        entry_bytes: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let n = self.count(field, limit)?;
        if n > (self.bytes.len() - self.at) / entry_bytes {
            return Err(DecodeError::Truncated { field });
        }
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            out.push(entry(self)?);
        }
        Ok(out)
    }

    pub(super) fn tokens(&mut self, field: Field, limit: usize) -> Result<Vec<Token>, DecodeError> {
        self.list(field, limit, 4, |r| r.token(field))
    }

    /// One to [`limits::MAX_ROWS`] tokens that start at `base` and stay within [`limits::MAX_CONTEXT`].
    pub(super) fn row_tokens(&mut self, field: Field, base: Position) -> Result<Vec<Token>, DecodeError> {
        let tokens = self.tokens(field, limits::MAX_ROWS as usize)?;
        if tokens.is_empty() {
            return Err(DecodeError::Empty { field });
        }
        if base.plus(tokens.len()).0 > limits::MAX_CONTEXT {
            return Err(DecodeError::Contradiction { field, rule: "must end within the longest context" });
        }
        Ok(tokens)
    }

    pub(super) fn option<T>(
        &mut self,
        field: Field,
        some: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag(field)? { some(self).map(Some) } else { Ok(None) }
    }
}

const fn in_range(field: Field, value: i64, min: i64, max: i64) -> Result<(), DecodeError> {
    if value < min || value > max {
        return Err(DecodeError::OutOfRange { field, value, min, max });
    }
    Ok(())
}
