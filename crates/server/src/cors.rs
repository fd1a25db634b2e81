//! Which web pages of other origins may call the API.

use axum::http::HeaderValue;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::http::REQUEST_ID;

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
}
