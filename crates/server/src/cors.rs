//! Which web pages of other origins may call the API.
//!
//! Without the headers of CORS a page cannot read an answer, but browsers still send some of its requests. So those are
//! refused that a browser marks as another site's: by `Sec-Fetch-Site`, which it sends to `localhost` and over TLS, else
//! by an `Origin` that is not the host that was asked. Programs that are no browsers send neither.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::http::REQUEST_ID;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The host that a proxy was asked for.
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Which web pages of other origins may call the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// None.
    #[default]
    Off,
    /// All.
    Any,
    /// Those of these origins, such as `https://chat.example`.
    Origins(Vec<HeaderValue>),
}

/// A text that is no origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no origin: write a scheme and a host, such as https://chat.example, or * for all")]
pub struct NoOrigin(String);

impl Cors {
    /// Those of a list; `*` is all, and an empty list none.
    ///
    /// # Errors
    /// If one of them is not what a browser would send.
    pub fn parse(origins: &[String]) -> Result<Self, NoOrigin> {
        if origins.iter().any(|origin| origin == "*") {
            return Ok(Self::Any);
        }
        if origins.is_empty() {
            return Ok(Self::Off);
        }
        origins.iter().map(|text| origin(text)).collect::<Result<_, _>>().map(Self::Origins)
    }

    /// The origin of the page that sent a request, if it may not send any.
    pub(crate) fn stranger(&self, headers: &HeaderMap) -> Option<String> {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let origin = headers.get(header::ORIGIN);
        let is_invited = match self {
            Self::Off => false,
            Self::Any => true,
            Self::Origins(origins) => origin.is_some_and(|origin| origins.contains(origin)),
        };
        let is_foreign = match text(&SEC_FETCH_SITE) {
            Some(site) => site == "cross-site" || site == "same-site",
            None => origin.is_some_and(|origin| {
                let page =
                    origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
                let asked = [text(&header::HOST), text(&FORWARDED_HOST)];
                !asked
                    .into_iter()
                    .flatten()
                    .any(|host| page.is_some_and(|page| page.eq_ignore_ascii_case(host)))
            }),
        };
        let name = || text(&header::ORIGIN).unwrap_or("another site").to_owned();
        (is_foreign && !is_invited).then(name)
    }

    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let origins = match self {
            Self::Off => return None,
            Self::Any => AllowOrigin::any(),
            Self::Origins(origins) => AllowOrigin::list(origins.clone()),
        };
        // `*` would not let `Authorization` through.
        let layer = CorsLayer::new().allow_methods(Any).allow_headers(AllowHeaders::mirror_request());
        Some(layer.allow_origin(origins).expose_headers([REQUEST_ID]))
    }
}

/// Browsers send a scheme, a host and, if it is not the usual one, a port: in lower case, without a path.
fn origin(text: &str) -> Result<HeaderValue, NoOrigin> {
    let no = || NoOrigin(text.to_owned());
    let text = text.trim_end_matches('/');
    let (scheme, host) = text.split_once("://").ok_or_else(no)?;
    let is_scheme =
        !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let is_host =
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
    if !is_scheme || !is_host {
        return Err(no());
    }
    HeaderValue::from_str(&text.to_ascii_lowercase()).map_err(|_| no())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &[&str]) -> Result<Cors, NoOrigin> {
        Cors::parse(&list.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn origins_are_what_browsers_send() {
        assert_eq!(parse(&[]), Ok(Cors::Off));
        assert_eq!(parse(&["https://a.example", "*"]), Ok(Cors::Any));
        let both = ["https://a.example", "http://localhost:3000"].map(HeaderValue::from_static).to_vec();
        assert_eq!(parse(&["https://A.example/", "http://localhost:3000"]), Ok(Cors::Origins(both)));
        for wrong in ["", "a.example", "https://", "https://a.example/path", "https://*.example", "://a"] {
            assert_eq!(parse(&[wrong]), Err(NoOrigin(wrong.to_owned())));
        }
    }

    #[test]
    fn pages_of_other_origins_are_strangers_unless_they_are_invited() {
        let off = Cors::Off;
        let one = parse(&["https://chat.example"]).unwrap();
        let stranger = |cors: &Cors, list: &[(&'static str, &'static str)]| {
            let header = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
            cors.stranger(&list.iter().map(header).collect())
        };
        let (host, evil) = (("host", "127.0.0.1:8080"), ("origin", "https://evil.example"));
        assert_eq!(stranger(&off, &[host]), None, "a program");
        for page in [
            ("origin", "http://127.0.0.1:8080"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(
                stranger(&off, &[host, page]),
                None,
                "the console, or an address that somebody typed: {page:?}"
            );
        }
        let behind_proxy = [host, ("origin", "http://chat.lan"), ("x-forwarded-host", "Chat.lan")];
        assert_eq!(stranger(&off, &behind_proxy), None);
        assert_eq!(stranger(&off, &[host, evil]).as_deref(), Some("https://evil.example"));
        assert_eq!(stranger(&off, &[host, ("origin", "null")]).as_deref(), Some("null"));
        for site in ["cross-site", "same-site"] {
            assert!(stranger(&off, &[host, ("sec-fetch-site", site)]).is_some());
            assert!(stranger(&one, &[host, evil, ("sec-fetch-site", site)]).is_some());
        }
        assert_eq!(stranger(&one, &[host, ("origin", "https://chat.example")]), None);
        assert_eq!(stranger(&Cors::Any, &[host, evil]), None);
    }
}
