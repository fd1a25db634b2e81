//! The console at `/`: one page and its parts, which are compiled into the program.
//!
//! Owns: the files, their types and their headers. What the page shows comes from `/v1/line/events`; it is open to
//! everybody, holds no secret, and asks for a key itself where one is needed.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Where the parts of the page are.
pub(crate) const PREFIX: &str = "/console/";

/// Nothing from elsewhere, nothing inline, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        [$(File { name: $name, kind: $kind, text: include_str!(concat!("../console/", $name)) }),*]
    };
}

const PAGE: &str = "index.html";

static FILES: [File; 26] = files![
    "index.html" HTML,
    "icon.svg" SVG,
    "base.css" CSS,
    "line.css" CSS,
    "tables.css" CSS,
    "chat.css" CSS,
    "app.js" SCRIPT,
    "dom.js" SCRIPT,
    "format.js" SCRIPT,
    "server.js" SCRIPT,
    "sse.js" SCRIPT,
    "key.js" SCRIPT,
    "theme.js" SCRIPT,
    "line.js" SCRIPT,
    "flow.js" SCRIPT,
    "track.js" SCRIPT,
    "requests.js" SCRIPT,
    "speed.js" SCRIPT,
    "series.js" SCRIPT,
    "chart.js" SCRIPT,
    "chat.js" SCRIPT,
    "thread.js" SCRIPT,
    "answer.js" SCRIPT,
    "settings.js" SCRIPT,
    "conversations.js" SCRIPT,
    "markdown.js" SCRIPT,
];

/// Changes whenever one of the files does.
static TAG: LazyLock<HeaderValue> = LazyLock::new(|| {
    let mut hash = blake3::Hasher::new();
    FILES.iter().for_each(|file| {
        hash.update(file.text.as_bytes());
    });
    let tag = format!("\"{}\"", &hash.finalize().to_hex()[..16]);
    HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes are visible ASCII")
});

/// Whether a path needs no key.
pub(crate) fn is_open(path: &str) -> bool {
    path == "/" || path.starts_with(PREFIX)
}

/// `GET /`.
pub(crate) async fn page(headers: HeaderMap) -> Response {
    let page = FILES.iter().find(|file| file.name == PAGE).expect("the page is one of the files");
    answer(page, &headers)
}

/// `GET /console/{file}`.
pub(crate) async fn part(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    match FILES.iter().find(|file| file.name == name && file.name != PAGE) {
        Some(file) => Ok(answer(file, &headers)),
        None => Err(ApiError::UnknownUrl(PREFIX.chars().chain(name.chars()).take(200).collect())),
    }
}

fn answer(file: &File, asked: &HeaderMap) -> Response {
    let known = asked.get(header::IF_NONE_MATCH).is_some_and(|tag| tag == *TAG);
    let mut response =
        if known { StatusCode::NOT_MODIFIED.into_response() } else { file.text.into_response() };
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, file.kind),
        // The next version of the program has other files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::ETAG, TAG.clone());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_for_nothing_that_is_not_here() {
        for file in &FILES {
            // The name of SVG's namespace, which nobody fetches.
            let text = file.text.replace("http://www.w3.org/", "");
            for other in ["http://", "https://", "//cdn", "url("] {
                let found = text.lines().find(|line| line.contains(other));
                assert!(found.is_none(), "{} names another place: {found:?}", file.name);
            }
            let imports = ["from \"", "import(\"", "import \""].map(|way| text.split(way).skip(1));
            for part in imports.into_iter().flatten().filter_map(|rest| rest.split('"').next()) {
                let here = FILES.iter().any(|file| part.strip_prefix("./") == Some(file.name));
                assert!(here, "{} imports {part}", file.name);
            }
        }
    }

    #[test]
    fn the_page_never_makes_markup_of_text() {
        for file in &FILES {
            for way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=\"",
                "onclick=",
            ] {
                assert!(!file.text.contains(way), "{} uses {way}", file.name);
            }
        }
    }
}
