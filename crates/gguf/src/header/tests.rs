//! Files that are not what they claim.

use proptest::prelude::*;

use super::*;

/// A file under construction: a head of `n` entries each, data behind it.
#[derive(Clone)]
struct Raw {
    version: u32,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: u64,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn key(name: &str, ty: u32, value: &[u8]) -> Vec<u8> {
    [&text(name), &ty.to_le_bytes()[..], value].concat()
}

fn array(ty: u32, n: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &n.to_le_bytes(), elements].concat()
}

fn tensor(name: &str, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    let n = (dims.len() / 8) as u32;
    [&text(name)[..], &n.to_le_bytes(), &dims, &ty.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl Raw {
    /// A small file with a value of every type and two tensors.
    fn sample() -> Self {
        let nested = array(9, 2, &[array(8, 1, &text("inner")), array(4, 2, &[0; 8])].concat());
        let scalars =
            [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)];
        let mut keys: Vec<_> =
            scalars.iter().map(|&(ty, size)| key(&format!("k{ty}"), ty, &vec![1; size])).collect();
        keys.push(key("text", 8, &text("hello")));
        keys.push(key("texts", 9, &array(8, 2, &[text("a"), text("")].concat())));
        keys.push(key("nested", 9, &nested));
        let tensors = vec![tensor("a", &[32, 2], 2, 0), tensor("b", &[3], 0, 64)];
        Self { version: 3, keys, tensors, data: 64 + 12 }
    }

    fn with_key(mut self, key: Vec<u8>) -> Self {
        self.keys.push(key);
        self
    }

    fn with_tensors(self, tensors: &[Vec<u8>]) -> Self {
        Self { tensors: tensors.to_vec(), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_claiming(self.tensors.len() as u64, self.keys.len() as u64)
    }

    fn bytes_claiming(&self, n_tensors: u64, n_keys: u64) -> Vec<u8> {
        let mut out = [b"GGUF", &self.version.to_le_bytes()[..]].concat();
        out.extend(n_tensors.to_le_bytes());
        out.extend(n_keys.to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(32) + self.data as usize, 7);
        out
    }

    fn parse(&self) -> Result<Header, HeaderError> {
        parse_bytes(&self.bytes())
    }
}

fn parse_bytes(bytes: &[u8]) -> Result<Header, HeaderError> {
    parse(bytes, bytes.len() as u64)
}

fn error(raw: &Raw) -> String {
    raw.parse().unwrap_err().to_string()
}

#[test]
fn every_value_type_is_read() {
    for version in [2, 3] {
        let head = Raw { version, ..Raw::sample() }.parse().unwrap();
        let get = |key: &str| head.metadata.get(key).unwrap();
        assert_eq!(get("k0").as_u64(), Some(1));
        assert_eq!(get("k5").as_u64(), Some(0x0101_0101));
        assert_eq!(get("k7").as_bool(), Some(true));
        assert_eq!(get("k12").as_f64(), Some(f64::from_le_bytes([1; 8])));
        assert_eq!(get("text").as_str(), Some("hello"));
        let texts: Vec<_> = get("texts").as_array().unwrap().texts().unwrap().collect();
        assert_eq!(texts, [b"a".as_slice(), b""]);
        assert_eq!(get("nested").as_array().unwrap().len(), 2);
        assert_eq!(get("nested").as_str(), None);
        let [a, b] = &head.tensors[..] else { panic!("{:?}", head.tensors) };
        assert_eq!((a.bytes, b.bytes, b.offset - a.offset), (36, 12, 64));
        assert!(a.offset.is_multiple_of(32));
    }
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let bytes = Raw::sample().bytes();
    parse_bytes(&bytes).unwrap();
    for len in 0..bytes.len() {
        let error = parse_bytes(&bytes[..len]).unwrap_err();
        assert!(
            matches!(error, HeaderError::Truncated { .. } | HeaderError::DataTruncated { .. }),
            "{len}: {error}"
        );
    }
}

#[test]
fn a_file_shorter_than_the_system_said_is_refused() {
    let bytes = Raw::sample().bytes();
    for len in 0..300 {
        parse(&bytes[..len], bytes.len() as u64).unwrap_err();
    }
}

#[test]
fn other_formats_are_told_apart() {
    let mut bytes = Raw::sample().bytes();
    bytes[0] = b'g';
    assert!(matches!(parse_bytes(&bytes), Err(HeaderError::Magic)));
    assert!(matches!(parse_bytes(b"<html>and more than twenty-four bytes"), Err(HeaderError::Magic)));
    assert!(matches!(Raw { version: 1, ..Raw::sample() }.parse(), Err(HeaderError::Version(1))));
    assert!(matches!(Raw { version: 0, ..Raw::sample() }.parse(), Err(HeaderError::Version(0))));
    assert!(matches!(
        Raw { version: 3_u32.swap_bytes(), ..Raw::sample() }.parse(),
        Err(HeaderError::BigEndian)
    ));
}

#[test]
fn huge_counts_are_refused_without_allocating() {
    let sample = Raw::sample();
    for n in [1000, MAX_KEYS, MAX_KEYS + 1, u64::from(u32::MAX), u64::MAX] {
        parse_bytes(&sample.bytes_claiming(n, sample.keys.len() as u64)).unwrap_err();
        parse_bytes(&sample.bytes_claiming(sample.tensors.len() as u64, n)).unwrap_err();
        for ty in [0, 4, 8, 9, 10] {
            error(&sample.clone().with_key(key("huge", 9, &array(ty, n, &[]))));
        }
        error(&sample.clone().with_key(key("huge", 8, &n.to_le_bytes())));
        error(&sample.clone().with_key(n.to_le_bytes().to_vec()));
    }
    assert!(error(&sample.clone().with_tensors(&[u64::MAX.to_le_bytes().to_vec()])).contains("name"));
    // A sparse file may be long without holding anything.
    let long = sample.clone().with_key(key("huge", 9, &array(0, 1 << 40, &[]))).bytes();
    assert!(matches!(parse(&long[..], u64::MAX), Err(HeaderError::Limit { what: "bytes of metadata", .. })));
}

#[test]
fn arrays_nest_only_so_deep() {
    let nest = |levels: usize| (1..levels).fold(array(4, 0, &[]), |inner, _| array(9, 1, &inner));
    let parse = |levels| Raw::sample().with_key(key("deep", 9, &nest(levels))).parse();
    parse(MAX_NESTING as usize).unwrap();
    assert!(matches!(
        parse(MAX_NESTING as usize + 1),
        Err(HeaderError::Limit { what: "levels of arrays", .. })
    ));
    parse(10_000).unwrap_err();
}

#[test]
fn keys_must_be_new_names_with_known_types() {
    let with = |key| error(&Raw::sample().with_key(key));
    assert!(with(key("text", 8, &text("again"))).contains("text occurs twice"));
    assert!(with(key("", 0, &[0])).contains("not a name"));
    assert!(with([&1_u64.to_le_bytes()[..], &[0xff], &[0; 5]].concat()).contains("not a name"));
    assert!(with(key("odd", 13, &[0; 8])).contains("odd has unknown value type 13"));
    assert!(with(key("odd", 9, &array(99, 1, &[0; 8]))).contains("odd has unknown value type 99"));
}

#[test]
fn alignment_must_be_a_power_of_two() {
    let with = |value: u32| Raw::sample().with_key(key("general.alignment", 4, &value.to_le_bytes())).parse();
    for bad in [0, 3, 33, 4 << 20, u32::MAX] {
        assert!(matches!(with(bad), Err(HeaderError::Alignment(_))), "{bad}");
    }
    let other_type = Raw::sample().with_key(key("general.alignment", 10, &32_u64.to_le_bytes()));
    assert!(matches!(other_type.parse(), Err(HeaderError::Alignment(_))));
    with(32).unwrap();
    // Tensor b starts at 64, so a finer alignment contradicts the padding of a.
    assert!(matches!(with(1), Err(HeaderError::Offset { .. })));
}

#[test]
fn impossible_tensors_are_refused() {
    let max = u64::MAX;
    let half = 1 << 32;
    let cases: &[(Vec<u8>, &str)] = &[
        (tensor("", &[1], 0, 0), "no usable name"),
        (tensor(&"x".repeat(64), &[1], 0, 0), "bytes in a tensor's name"),
        (tensor("t", &[1; 5], 0, 0), "dimensions"),
        (tensor("t", &[0], 0, 0), "impossible shape"),
        (tensor("t", &[4, 0], 0, 0), "impossible shape"),
        (tensor("t", &[33], 2, 0), "impossible shape"),
        (tensor("t", &[max], 0, 0), "impossible shape"),
        (tensor("t", &[half, half], 0, 0), "impossible shape"),
        (tensor("t", &[half, half, half, half], 0, 0), "impossible shape"),
        (tensor("t", &[1 << 62], 24, 0), "its tensors end at"),
        (tensor("t", &[1], 4, 0), "has type 4"),
        (tensor("t", &[1], max as u32, 0), "which this build does not know"),
        (tensor("t", &[1], 0, 32), "starts at 32 instead of 0"),
        (tensor("t", &[1], 0, max), "instead of 0"),
        (tensor("t", &[1000], 0, 0), "its tensors end at"),
    ];
    for (tensor, want) in cases {
        let got = error(&Raw::sample().with_tensors(std::slice::from_ref(tensor)));
        assert!(got.contains(want), "{got} lacks {want}");
    }
    let twice = [tensor("t", &[1], 0, 0), tensor("t", &[1], 0, 32)];
    assert!(error(&Raw::sample().with_tensors(&twice)).contains("t occurs twice"));
    let sum = [tensor("t", &[i64::MAX as u64], 24, 0), tensor("u", &[i64::MAX as u64], 24, 1 << 63)];
    assert!(error(&Raw::sample().with_tensors(&sum)).contains("impossible shape"));
}

#[test]
fn a_tensor_without_dimensions_is_one_element() {
    let head = Raw::sample().with_tensors(&[tensor("t", &[], 0, 0)]).parse().unwrap();
    assert_eq!((head.tensors[0].dims.as_slice(), head.tensors[0].bytes), ([1].as_slice(), 4));
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = Raw::sample().bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(head) = parse_bytes(&bytes) {
            for tensor in &head.tensors {
                prop_assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
            }
            for (_, value) in head.metadata.iter() {
                let _ = value.to_string();
                if let Some(array) = value.as_array() {
                    let _ = (array.to_u64s(), array.to_bools(), array.select([0, 1]));
                    let _ = array.texts().map(Iterator::count);
                }
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_bytes(&[b"GGUF\x03\0\0\0", &tail[..]].concat());
    }
}
