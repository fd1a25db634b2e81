//! What a file looks like: a mark, a digest of all that follows, the file's name, and the bytes.
//!
//! Pure. A name says what the bytes are, down to whatever they depend on; so a file of an older build, another model or
//! another machine has another name, and one that was moved to a wrong place says so itself.

use std::fmt;

use bytes::Bytes;

/// Changes with the form.
const MARK: [u8; 8] = *b"PACELIN1";
const DIGEST: usize = 32;
/// Where the bytes begin.
const HEAD: usize = MARK.len() + DIGEST + DIGEST;

/// What something is called in a store: a digest of what it is, and a short ending for people and for listings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    digest: [u8; DIGEST],
    ending: &'static str,
}

impl Name {
    /// The name of what these parts say together, in order. The ending is a plain word, such as `kv`.
    ///
    /// # Panics
    /// If the ending is not one to eight small letters.
    #[must_use]
    pub fn new(ending: &'static str, parts: &[&[u8]]) -> Self {
        let is_plain =
            (1..=8).contains(&ending.len()) && ending.bytes().all(|byte| byte.is_ascii_lowercase());
        assert!(is_plain, "{ending:?} is no ending");
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            // With their lengths, so that no two lists of parts look the same.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self { digest: *hasher.finalize().as_bytes(), ending }
    }

    /// The digest alone.
    #[must_use]
    pub const fn digest(&self) -> [u8; DIGEST] {
        self.digest
    }

    /// The file's name.
    pub(crate) fn file(&self) -> String {
        let digits: String = self.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits}.{}", self.ending)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file())
    }
}

/// What precedes the bytes in the file of that name.
pub(crate) fn head(name: &Name, bytes: &[&[u8]]) -> [u8; HEAD] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&name.digest);
    bytes.iter().for_each(|bytes| _ = hasher.update(bytes));
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MARK);
    head[8..8 + DIGEST].copy_from_slice(hasher.finalize().as_bytes());
    head[8 + DIGEST..].copy_from_slice(&name.digest);
    head
}

/// The bytes of a file, whose name begins with `digits`; none if it is not what it should be.
pub(crate) fn check(file: &str, content: Vec<u8>) -> Option<Bytes> {
    let (mark, rest) = content.split_first_chunk::<8>()?;
    let (digest, rest) = rest.split_first_chunk::<DIGEST>()?;
    let (name, _) = rest.split_first_chunk::<DIGEST>()?;
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let is_its = file.strip_prefix(&digits).is_some_and(|ending| ending.starts_with('.'));
    let is_whole = *mark == MARK && *blake3::hash(rest).as_bytes() == *digest;
    (is_its && is_whole).then(|| Bytes::from(content).slice(HEAD..))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(name: &Name, bytes: &[u8]) -> Vec<u8> {
        [&head(name, &[bytes])[..], bytes].concat()
    }

    proptest! {
        #[test]
        fn a_file_with_one_wrong_byte_is_none(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            wrong in 1..=255_u8,
            cut in any::<prop::sample::Index>(),
        ) {
            let name = Name::new("kv", &[b"a model", &bytes]);
            let good = whole(&name, &bytes);
            prop_assert_eq!(check(&name.file(), good.clone()), Some(Bytes::from(bytes)));
            let mut bad = good.clone();
            bad[at.index(good.len())] ^= wrong;
            prop_assert_eq!(check(&name.file(), bad), None);
            prop_assert_eq!(check(&name.file(), good[..cut.index(good.len())].to_vec()), None);
        }
    }

    #[test]
    fn a_file_under_another_name_is_none() {
        let (name, other) = (Name::new("kv", &[b"one"]), Name::new("kv", &[b"two"]));
        assert_eq!(check(&other.file(), whole(&name, b"bytes")), None);
        assert_eq!(check("", whole(&name, b"bytes")), None);
        assert_eq!(check(&name.file(), Vec::new()), None);
    }

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(Name::new("kv", &[b"ab", b"c"]), Name::new("kv", &[b"a", b"bc"]));
        assert_ne!(Name::new("kv", &[b"ab"]), Name::new("text", &[b"ab"]));
    }
}
