//! Metadata values, kept in the bytes of the file so that copying and hashing them is exact.
//!
//! Owns the value types and typed views of them. Does not know which key means what.

use std::fmt;

/// The type of a metadata value, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number, if there is one.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Bytes of one value; none for strings and arrays.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// Bytes before the elements of an array: element type and count.
pub(crate) const ARRAY_HEAD: usize = 12;

/// One metadata value.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    ty: ValueType,
    /// As in the file after the type: little-endian; strings with their length; arrays with element type and count.
    raw: Vec<u8>,
}

impl Value {
    /// `raw` must be well-formed for `ty`: the parser and the constructors below see to it.
    pub(crate) const fn from_raw(ty: ValueType, raw: Vec<u8>) -> Self {
        Self { ty, raw }
    }

    pub(crate) fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Its type.
    #[must_use]
    pub const fn value_type(&self) -> ValueType {
        self.ty
    }

    /// A text.
    #[must_use]
    pub fn string(text: &str) -> Self {
        let mut raw = (text.len() as u64).to_le_bytes().to_vec();
        raw.extend_from_slice(text.as_bytes());
        Self { ty: ValueType::String, raw }
    }

    /// An array of switches.
    #[must_use]
    pub fn bools(values: &[bool]) -> Self {
        Self::array(ValueType::Bool, values.len(), values.iter().map(|&b| u8::from(b)).collect())
    }

    /// An array of 32-bit counts.
    #[must_use]
    pub fn u32s(values: &[u32]) -> Self {
        Self::array(ValueType::U32, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An array of 32-bit numbers.
    #[must_use]
    pub fn f32s(values: &[f32]) -> Self {
        Self::array(ValueType::F32, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An array of texts.
    #[must_use]
    pub fn strings<S: AsRef<str>>(values: &[S]) -> Self {
        let elements = values.iter().flat_map(|s| Self::string(s.as_ref()).raw).collect();
        Self::array(ValueType::String, values.len(), elements)
    }

    fn array(element: ValueType, len: usize, elements: Vec<u8>) -> Self {
        let mut raw = (element as u32).to_le_bytes().to_vec();
        raw.extend_from_slice(&(len as u64).to_le_bytes());
        raw.extend_from_slice(&elements);
        Self { ty: ValueType::Array, raw }
    }

    /// As a count: any integer type, if it is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        integer(self.ty, &self.raw)
    }

    /// As a number: any float or integer type.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self.ty {
            ValueType::F32 => Some(f64::from(f32::from_le_bytes(word(&self.raw)))),
            ValueType::F64 => Some(f64::from_le_bytes(word(&self.raw))),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// As a switch.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        (self.ty == ValueType::Bool).then(|| self.raw[0] != 0)
    }

    /// As text; none if it is not a string or not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self.ty {
            ValueType::String => std::str::from_utf8(&self.raw[8..]).ok(),
            _ => None,
        }
    }

    /// As an array.
    #[must_use]
    pub fn as_array(&self) -> Option<Array<'_>> {
        if self.ty != ValueType::Array {
            return None;
        }
        let element =
            ValueType::from_id(u32::from_le_bytes(word(&self.raw))).expect("checked when it was made");
        let len = u64::from_le_bytes(word(&self.raw[4..]));
        let len = usize::try_from(len).expect("its elements are in memory or are empty");
        Some(Array { element, len, raw: &self.raw[ARRAY_HEAD..] })
    }
}

macro_rules! scalar {
    ($($name:ident: $inner:ty = $ty:ident),*) => {$(
        impl From<$inner> for Value {
            fn from(value: $inner) -> Self {
                Self { ty: ValueType::$ty, raw: value.to_le_bytes().to_vec() }
            }
        }
    )*};
}

scalar!(u8: u8 = U8, i8: i8 = I8, u16: u16 = U16, i16: i16 = I16, u32: u32 = U32, i32: i32 = I32, u64: u64 = U64, i64: i64 = I64, f32: f32 = F32, f64: f64 = F64);

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self { ty: ValueType::Bool, raw: vec![u8::from(value)] }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ty {
            ValueType::String => f.write_str(&String::from_utf8_lossy(&self.raw[8..])),
            ValueType::Bool => write!(f, "{}", self.raw[0] != 0),
            ValueType::F32 => write!(f, "{}", f32::from_le_bytes(word(&self.raw))),
            ValueType::F64 => write!(f, "{}", f64::from_le_bytes(word(&self.raw))),
            ValueType::Array => {
                let array = self.as_array().expect("the type says so");
                write!(f, "{} x {:?}", array.len, array.element)
            }
            _ => write!(f, "{}", signed(self.ty, &self.raw).expect("the other types are integers")),
        }
    }
}

/// A view of an array's elements.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    raw: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of its elements.
    #[must_use]
    pub const fn element_type(self) -> ValueType {
        self.element
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Its elements as counts; none if one is negative or they are not integers or switches.
    #[must_use]
    pub fn to_u64s(self) -> Option<Vec<u64>> {
        let size = self.element.size()?;
        self.raw.chunks_exact(size).map(|raw| integer(self.element, raw)).collect()
    }

    /// Its elements as switches: booleans, or integers where 0 is off.
    #[must_use]
    pub fn to_bools(self) -> Option<Vec<bool>> {
        let size = self.element.size()?;
        self.raw.chunks_exact(size).map(|raw| Some(signed(self.element, raw)? != 0)).collect()
    }

    /// Its elements as bytes of texts, if they are strings.
    pub fn texts(self) -> Option<impl Iterator<Item = &'a [u8]>> {
        (self.element == ValueType::String).then(|| {
            let mut rest = self.raw;
            std::iter::from_fn(move || {
                let len = usize::try_from(u64::from_le_bytes(*rest.first_chunk()?)).ok()?;
                let (text, after) = rest[8..].split_at(len);
                rest = after;
                Some(text)
            })
        })
    }

    /// The elements at these indices, as a new array; none if they have no fixed size or an index is out of range.
    #[must_use]
    pub fn select(self, indices: impl IntoIterator<Item = usize>) -> Option<Value> {
        let size = self.element.size()?;
        let (mut elements, mut len) = (Vec::new(), 0);
        for index in indices {
            elements.extend_from_slice(self.raw.get(index * size..(index + 1) * size)?);
            len += 1;
        }
        Some(Value::array(self.element, len, elements))
    }
}

fn word<const N: usize>(raw: &[u8]) -> [u8; N] {
    *raw.first_chunk().expect("values are at least as long as their type")
}

fn signed(ty: ValueType, raw: &[u8]) -> Option<i128> {
    Some(match ty {
        ValueType::U8 | ValueType::Bool => i128::from(raw[0]),
        ValueType::I8 => i128::from(raw[0].cast_signed()),
        ValueType::U16 => i128::from(u16::from_le_bytes(word(raw))),
        ValueType::I16 => i128::from(i16::from_le_bytes(word(raw))),
        ValueType::U32 => i128::from(u32::from_le_bytes(word(raw))),
        ValueType::I32 => i128::from(i32::from_le_bytes(word(raw))),
        ValueType::U64 => i128::from(u64::from_le_bytes(word(raw))),
        ValueType::I64 => i128::from(i64::from_le_bytes(word(raw))),
        ValueType::F32 | ValueType::F64 | ValueType::String | ValueType::Array => return None,
    })
}

fn integer(ty: ValueType, raw: &[u8]) -> Option<u64> {
    u64::try_from(signed(ty, raw)?).ok()
}
