//! Identifiers as distinct types, so that mixing them does not compile.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// A vocabulary entry. Valid ids are `0..n_vocab`; negative ids never travel.
    Token(i32)
}
id! {
    /// A place in a sequence, counted in tokens from 0.
    Position(u32)
}
id! {
    /// One sequence on one line. The front never reuses an id: recovery of any kind opens a new one.
    SeqId(u64)
}
id! {
    /// One window of a sequence, counted from 0 by the front.
    WindowId(u32)
}
id! {
    /// A period of a sequence between two contradictions. Never decreases.
    Epoch(u32)
}
id! {
    /// One assignment of a line. A connection made in an older generation carries nothing into a newer one.
    Generation(u64)
}
id! {
    /// A stage's place in its line, 0 being the one that looks up embeddings.
    StageIndex(u16)
}
id! {
    /// A machine that a front keeps a control link to, by the number that the front has for it. The number stays when
    /// the machine takes another place in the line, or has none.
    PeerIndex(u16)
}

impl Position {
    /// The position `n` tokens further on.
    ///
    /// # Panics
    /// On overflow of `u32`, which [`crate::limits::MAX_CONTEXT`] rules out for positions that passed decoding.
    #[must_use]
    pub const fn plus(self, n: usize) -> Self {
        assert!(n <= u32::MAX as usize, "no sequence is that long");
        Self(self.0.checked_add(n as u32).expect("positions stay within the longest context"))
    }
}

impl Epoch {
    /// The epoch that a contradiction in this one opens.
    ///
    /// # Panics
    /// On overflow of `u32`, which [`crate::limits::MAX_EPOCH`] rules out for epochs that passed decoding.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A half-open range of layers, `start..end`, counted in the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerRange {
    /// First layer in the range.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
}

impl LayerRange {
    /// Number of layers.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no layer.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// The first eight bytes in hex: enough to tell two apart in a message to a person.
            #[must_use]
            pub fn short(&self) -> String {
                self.0[..8].iter().map(|b| format!("{b:02x}")).collect()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl std::str::FromStr for $name {
            type Err = HexError;

            fn from_str(s: &str) -> Result<Self, HexError> {
                let mut out = [0; 32];
                if s.len() != 64 || !s.is_ascii() {
                    return Err(HexError);
                }
                for (byte, pair) in out.iter_mut().zip(s.as_bytes().chunks_exact(2)) {
                    let pair = std::str::from_utf8(pair).map_err(|_| HexError)?;
                    *byte = u8::from_str_radix(pair, 16).map_err(|_| HexError)?;
                }
                Ok(Self(out))
            }
        }
    };
}

digest! {
    /// BLAKE3 over a model's metadata and tensor data: what two machines must agree on.
    ModelId
}
digest! {
    /// What a stored prefix holds: BLAKE3 over whose it is and its tokens. Two prefixes of one key are the same.
    PrefixKey
}
digest! {
    /// A node's Ed25519 public key.
    NodeId
}

/// Text that is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hex digits")]
pub struct HexError;
