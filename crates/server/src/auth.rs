//! API keys: from a file, kept as hashes, compared in constant time.

use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::current::Current;
use crate::limits::{MAX_KEY_FILE_BYTES, MAX_KEYS};

/// Where Anthropic's clients send their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Keys that let a request in: those that their file holds now. Clones share them.
#[derive(Clone)]
pub struct ApiKeys(Current<Keys>);

/// The keys of one version of the file.
struct Keys {
    hashes: Vec<blake3::Hash>,
}

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read the API keys in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds no key, or something that cannot be one.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl ApiKeys {
    /// Reads a file with one key per line; empty lines and lines that start with `#` do not count. It is read again when
    /// it changes; a version that cannot be used is passed over.
    ///
    /// # Errors
    /// If the file cannot be read, has more than 1 MiB or 10000 keys, holds no key, or a key with characters that cannot
    /// be sent.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        let file = path.to_owned();
        Current::new(vec![path.to_owned()], move || Keys::load(&file)).map(Self)
    }

    /// Whose key a request carries, as `Authorization: Bearer KEY` or as `x-api-key: KEY`.
    pub(crate) fn allow(&self, headers: &HeaderMap) -> Option<Caller> {
        let keys = self.0.get();
        keys.bearer(headers.get(header::AUTHORIZATION)).or_else(|| keys.bare(headers.get(API_KEY)))
    }
}

impl Keys {
    fn load(path: &Path) -> Result<Self, KeyFileError> {
        let read = |source| KeyFileError::Read { path: path.into(), source };
        let file = std::fs::File::open(path).map_err(read)?;
        let mut text = String::new();
        let size = file.take(MAX_KEY_FILE_BYTES + 1).read_to_string(&mut text).map_err(read)?;
        let content = |reason| KeyFileError::Content { path: path.into(), reason };
        if size as u64 > MAX_KEY_FILE_BYTES {
            return Err(content("the file has more than 1 MiB; write one key per line"));
        }
        Self::parse(&text).map_err(content)
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let keys: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        if keys.is_empty() {
            return Err("the file holds no API key; write one per line");
        }
        if keys.len() > MAX_KEYS {
            return Err("the file holds more than 10000 API keys; strike out those that nobody uses");
        }
        if !keys.iter().all(|key| key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("an API key may hold only visible ASCII characters; write one per line");
        }
        Ok(Self { hashes: keys.iter().map(|key| blake3::hash(key.as_bytes())).collect() })
    }

    fn bearer(&self, authorization: Option<&HeaderValue>) -> Option<Caller> {
        let (scheme, key) = authorization?.to_str().ok()?.split_once(' ')?;
        self.find(key).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
    }

    fn bare(&self, key: Option<&HeaderValue>) -> Option<Caller> {
        self.find(key?.to_str().ok()?)
    }

    /// Takes the same time for any wrong key.
    fn find(&self, key: &str) -> Option<Caller> {
        let hash = blake3::hash(key.trim().as_bytes());
        // Equality of `blake3::Hash` takes constant time; `|` asks every key.
        let is_known = self.hashes.iter().fold(false, |known, ours| known | (*ours == hash));
        is_known.then(|| Caller { key: short(&hash), client: short(&hash) })
    }
}

/// Who asks, told from others by its key, or by its address where there are no keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Zero for everybody where there are no keys.
    key: u64,
    client: u64,
}

impl Caller {
    /// Whoever asks from an address. Everybody shares what was computed, but waits in turn.
    pub(crate) fn at(address: IpAddr) -> Self {
        Self { key: 0, client: short(&blake3::hash(address.to_canonical().to_string().as_bytes())) }
    }

    /// Whether both have the same key; everybody has where there are none.
    pub(crate) const fn owns_with(self, other: Self) -> bool {
        self.key == other.key
    }

    /// Whose requests wait in turn with those of others.
    pub(crate) const fn client(self) -> u64 {
        self.client
    }

    /// Whose computed prompts a request may share: only this caller's, and of those only the ones with the same `name`.
    pub(crate) fn namespace(self, name: Option<&str>) -> u64 {
        match name {
            None => self.key,
            Some(name) => short(
                &blake3::Hasher::new().update(&self.key.to_le_bytes()).update(name.as_bytes()).finalize(),
            ),
        }
    }
}

fn short(hash: &blake3::Hash) -> u64 {
    hash.as_bytes()[..8].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.get().hashes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines_and_comments_are_not() {
        let keys = Keys::parse("# team\nsk-one\n\n  sk-two  \n").unwrap();
        let allow = |value: &'static str| keys.bearer(Some(&HeaderValue::from_static(value))).is_some();
        assert!(allow("Bearer sk-one") && allow("bearer sk-two"));
        assert!(
            !allow("Bearer # team") && !allow("Bearer sk-on") && !allow("Basic sk-one") && !allow("sk-one")
        );
        assert!(!allow("Bearer ") && keys.bearer(None).is_none());
    }

    #[test]
    fn callers_and_names_are_told_apart() {
        let keys = Keys::parse("one\ntwo").unwrap();
        let caller = |value: &'static str| keys.bare(Some(&HeaderValue::from_static(value))).unwrap();
        let spaces = [
            caller("one").namespace(None),
            caller("two").namespace(None),
            caller("one").namespace(Some("a")),
            caller("two").namespace(Some("a")),
            Caller::default().namespace(None),
        ];
        let distinct: std::collections::BTreeSet<u64> = spaces.into_iter().collect();
        assert_eq!(distinct.len(), spaces.len());
        assert_eq!(caller("one"), keys.bearer(Some(&HeaderValue::from_static("Bearer one"))).unwrap());
    }

    #[test]
    fn a_key_is_good_for_as_long_as_the_file_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "one\n").unwrap();
        let keys = ApiKeys::load(&path).unwrap();
        let allow = |key: &'static str| {
            keys.allow(&HeaderMap::from_iter([(API_KEY, HeaderValue::from_static(key))])).is_some()
        };
        assert!(allow("one") && !allow("two"));
        std::fs::write(&path, "two\nthree\n").unwrap();
        assert!(!allow("one") && allow("two"));
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
        std::fs::write(&path, "").unwrap();
        assert!(allow("two"), "a file without keys must lock nobody out, nor let everyone in");
        assert!(!allow("one"));
    }

    #[test]
    fn files_without_a_usable_key_are_errors() {
        assert!(Keys::parse("\n# none\n").is_err());
        assert!(Keys::parse("two words").is_err());
        assert!(Keys::parse(&"key\n".repeat(MAX_KEYS)).is_ok());
        assert!(Keys::parse(&"key\n".repeat(MAX_KEYS + 1)).is_err());
        let folder = tempfile::tempdir().unwrap();
        let missing = ApiKeys::load(&folder.path().join("keys")).unwrap_err();
        assert!(matches!(missing, KeyFileError::Read { .. }), "{missing}");
        let path = folder.path().join("empty");
        std::fs::write(&path, "").unwrap();
        let empty = ApiKeys::load(&path).unwrap_err();
        assert!(matches!(empty, KeyFileError::Content { .. }), "{empty}");
    }
}
