//! With API keys configured nothing but a few open paths answers without one. What the router has is asked beside its
//! table of routes; here are paths that it does not have.

use axum::body::Body;
use axum::http::{Method, Request};
use insta::assert_snapshot;
use server::{ApiConfig, ApiKeys};

use crate::errors::line;
use crate::fake::{Answer, Harness};

struct Guarded {
    harness: Harness,
    file: tempfile::NamedTempFile,
}

impl Guarded {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\nsk-1\nsk-2\n").unwrap();
        let keys = ApiKeys::load(file.path()).unwrap();
        let config = ApiConfig { api_keys: Some(keys), ..ApiConfig::default() };
        Self { harness: Harness::with_config(config), file }
    }

    async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        Answer::read(self.harness.send(request.body(Body::empty()).unwrap()).await).await
    }
}

#[tokio::test]
async fn paths_that_only_look_like_open_ones_and_paths_of_nothing_ask_for_a_key() {
    let guarded = Guarded::new();
    let paths = [
        "/x",
        "/v1",
        "/v1/embeddings/",
        "/embeddings",
        "/health/",
        "//health",
        "/ready/x",
        "/HEALTH",
        "/%68ealth",
        "/console",
        "//",
        "/Console/app.js",
    ];
    for path in paths {
        for method in [Method::GET, Method::POST, Method::OPTIONS] {
            for headers in [&[][..], &[("authorization", "Bearer sk-3")], &[("x-api-key", "sk-")]] {
                let answer = guarded.ask(method.clone(), path, headers).await;
                assert_eq!(answer.status, 401, "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn one_of_the_keys_opens_in_either_header() {
    let guarded = Guarded::new();
    for header in [("authorization", "Bearer sk-1"), ("authorization", "bearer sk-2"), ("x-api-key", "sk-2")]
    {
        assert_eq!(guarded.ask(Method::GET, "/v1/models", &[header]).await.status, 200, "{header:?}");
    }
    let refused = guarded.ask(Method::GET, "/v1/models", &[]).await;
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_snapshot!(line("no key", &refused));
}

#[tokio::test]
async fn keys_change_with_their_file() {
    let guarded = Guarded::new();
    let status = async |key: &str| {
        guarded.ask(Method::GET, "/v1/models", &[("authorization", &format!("Bearer {key}"))]).await.status
    };
    assert_eq!((status("sk-1").await, status("sk-new").await), (200, 401));
    std::fs::write(guarded.file.path(), "sk-2\nsk-new\n").unwrap();
    assert_eq!((status("sk-1").await, status("sk-2").await, status("sk-new").await), (401, 200, 200));
}
