//! W3C trace context: which trace a request says that it belongs to. What is damaged counts as not there.

use axum::http::{HeaderMap, HeaderName};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Characters of `tracestate` that anybody must pass on; longer ones are dropped whole.
const MAX_STATE: usize = 512;

/// The caller's own span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    /// Its trace; not 0.
    pub trace: u128,
    /// Itself; not 0.
    pub span: u64,
    /// Whether the caller records it.
    pub sampled: bool,
    /// What vendors wrote into `tracestate`.
    pub state: Option<String>,
}

impl Parent {
    /// The parent that a request names, if it names one.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let (Some(only), None) = (given.next(), given.next()) else { return None };
        let parent = parse(only.to_str().ok()?)?;
        let states: Option<Vec<&str>> =
            headers.get_all(TRACESTATE).iter().map(|state| state.to_str().ok()).collect();
        let state = states.map(|states| states.join(",")).filter(|state| !state.trim().is_empty());
        Some(Self { state: state.filter(|state| state.len() <= MAX_STATE), ..parent })
    }
}

/// `version-trace-span-flags`. A later version may have more behind it.
fn parse(text: &str) -> Option<Parent> {
    let mut fields = text.trim().split('-');
    let version = hex(fields.next()?, 2)?;
    let trace = hex(fields.next()?, 32)?;
    let span = hex(fields.next()?, 16)?;
    let flags = hex(fields.next()?, 2)?;
    let has_more = fields.next().is_some();
    if version == 0xff || (version == 0 && has_more) || trace == 0 || span == 0 {
        return None;
    }
    // 16 digits fit.
    Some(Parent { trace, span: span as u64, sampled: flags & 1 == 1, state: None })
}

/// So many lower-case digits, and nothing else.
fn hex(text: &str, n_digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == n_digits && text.bytes().all(is_digit)).then_some(())?;
    u128::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn of(headers: &[(&'static str, &str)]) -> Option<Parent> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        Parent::of(&map)
    }

    #[test]
    fn a_parent_is_read_with_its_flag_and_state() {
        let parent = of(&[
            ("traceparent", &format!("00-{TRACE}-{SPAN}-01")),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ]);
        let expected = Parent {
            trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span: 0x00f0_67aa_0ba9_02b7,
            sampled: true,
            state: Some("a=1,b=2".into()),
        };
        assert_eq!(parent, Some(expected));
        let unsampled = of(&[("traceparent", &format!("00-{TRACE}-{SPAN}-02"))]).unwrap();
        assert_eq!((unsampled.sampled, unsampled.state), (false, None));
        let later = of(&[("traceparent", &format!("cc-{TRACE}-{SPAN}-09-what-comes-later"))]).unwrap();
        assert!(later.sampled);
    }

    #[test]
    fn a_damaged_parent_is_none() {
        let zero = |n: usize| "0".repeat(n);
        for bad in [
            String::new(),
            "nonsense".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", zero(32)),
            format!("00-{TRACE}-{}-01", zero(16)),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
        ] {
            assert_eq!(of(&[("traceparent", &bad)]), None, "{bad}");
        }
        let good = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(of(&[("traceparent", &good), ("traceparent", &good)]), None, "two parents are none");
        let long = "x".repeat(MAX_STATE + 1);
        let parent = of(&[("traceparent", &good), ("tracestate", &long)]).unwrap();
        assert_eq!(parent.state, None);
    }
}
