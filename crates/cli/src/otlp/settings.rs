//! Where traces go and which: from flags, and from the environment variables that OpenTelemetry has names for.
//!
//! Flags win. What a flag says wrong ends the program; what a variable says wrong is told and passed over, since whoever
//! sets it for many programs at once cannot know this one.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use server::{Sampler, Share};

use super::client::Target;
use crate::args::usage;

/// The path of traces behind an endpoint that is for all signals.
const TRACES: &str = "v1/traces";
/// How long a collector may take for an answer, as OpenTelemetry has it.
const TIMEOUT: Duration = Duration::from_secs(10);
const SERVICE: &str = "paceline";

/// What flags say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// `--otlp`.
    pub endpoint: Option<String>,
    /// `--otlp-sample`.
    pub share: Option<Share>,
    /// `--otlp-content`.
    pub content: bool,
}

impl Asked {
    pub(crate) fn new(
        endpoint: Option<String>,
        share: Option<&str>,
        content: Option<bool>,
    ) -> anyhow::Result<Self> {
        if let Some(given) = &endpoint
            && let Err(why) = traces_below(given)
        {
            return usage(format!("--otlp: {why}"));
        }
        let share = match share.map(str::parse).transpose() {
            Ok(share) => share,
            Err(error) => return usage(format!("--otlp-sample: {error}")),
        };
        Ok(Self { endpoint, share, content: content.unwrap_or(false) })
    }
}

/// How traces travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Protobuf,
    Json,
}

/// Everything that is to know about exporting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) target: Target,
    pub(crate) encoding: Encoding,
    /// Shown with every request; secrets among them.
    pub(crate) headers: Vec<(String, String)>,
    /// Certificates (PEM) that a collector's must be signed with, in place of the system's.
    pub(crate) roots: Option<PathBuf>,
    pub(crate) timeout: Duration,
    /// The front's name.
    pub(crate) service: String,
    /// What else is to be said about where the line runs.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) sampler: Sampler,
    pub(crate) content: bool,
}

/// The settings of this process; none if nothing is to be exported. What the environment says wrong is logged.
pub(crate) fn of_process(asked: &Asked) -> anyhow::Result<Option<Settings>> {
    #[expect(clippy::disallowed_methods, reason = "`cli` alone reads the environment")]
    let variable = |name: &str| std::env::var(name).ok();
    let mut said = Said { variable: &variable, wrong: Vec::new() };
    let settings = settings(asked, &mut said)?;
    for sentence in said.wrong {
        tracing::warn!("{sentence}");
    }
    Ok(settings)
}

/// What the environment says.
struct Said<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// Sentences about what was passed over.
    wrong: Vec<String>,
}

impl Said<'_> {
    /// A variable that says something.
    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// A variable for traces, or the same one for all signals; with the name that it had.
    fn exporter(&self, name: &str) -> Option<(String, String)> {
        [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")]
            .into_iter()
            .find_map(|name| self.get(&name).map(|value| (name, value)))
    }

    fn pass_over(&mut self, name: &str, why: impl std::fmt::Display) {
        self.wrong.push(format!("{name} is passed over: {why}"));
    }

    /// Where traces go, unless they are switched off.
    fn target(&mut self) -> Option<Target> {
        let is_off = self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporters = self.get("OTEL_TRACES_EXPORTER");
        if is_off || exporters.is_some_and(|list| !list.split(',').any(|name| name.trim() == "otlp")) {
            return None;
        }
        let own = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let (name, target) = match self.get(own) {
            Some(url) => (own, url.parse()),
            None => ("OTEL_EXPORTER_OTLP_ENDPOINT", traces_below(&self.get("OTEL_EXPORTER_OTLP_ENDPOINT")?)),
        };
        target.map_err(|why| self.pass_over(name, format!("{why}; nothing is traced"))).ok()
    }

    /// None if it is one that we do not speak.
    fn encoding(&mut self) -> Option<Encoding> {
        match self.exporter("PROTOCOL") {
            None => Some(Encoding::Protobuf),
            Some((name, value)) => match value.as_str() {
                "http/protobuf" => Some(Encoding::Protobuf),
                "http/json" => Some(Encoding::Json),
                other => {
                    self.pass_over(
                        &name,
                        format!("`{other}` is not spoken here; http/protobuf and http/json are, usually on port 4318"),
                    );
                    None
                }
            },
        }
    }

    fn sampler(&mut self) -> Sampler {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        let sampler = match self.get(NAME).map(|name| Sampler::named(&name)) {
            None => return Sampler::default(),
            Some(Ok(sampler)) => sampler,
            Some(Err(why)) => {
                self.pass_over(NAME, why);
                return Sampler::default();
            }
        };
        let by_share = self.get(NAME).is_some_and(|name| name.ends_with("traceidratio"));
        match self.get("OTEL_TRACES_SAMPLER_ARG").filter(|_| by_share).map(|share| share.parse::<Share>()) {
            None => sampler,
            Some(Ok(share)) => sampler.with_share(share),
            Some(Err(why)) => {
                self.pass_over("OTEL_TRACES_SAMPLER_ARG", why);
                sampler
            }
        }
    }

    fn timeout(&mut self) -> Duration {
        let Some((name, value)) = self.exporter("TIMEOUT") else { return TIMEOUT };
        match value.parse::<u32>() {
            Ok(ms) if ms > 0 => Duration::from_millis(u64::from(ms)),
            _ => {
                self.pass_over(&name, format!("`{value}` is no number of milliseconds"));
                TIMEOUT
            }
        }
    }

    /// `key=value` pairs, as in W3C baggage.
    fn pairs(&mut self, name: &str, list: &str) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry.split_once('=').map(|(key, value)| (decoded(key), decoded(value))) {
                Some((Some(key), Some(value))) if !key.is_empty() => pairs.push((key, value)),
                // The entry may be a secret.
                _ => self.pass_over(name, "an entry is not of the form key=value"),
            }
        }
        pairs
    }

    fn headers(&mut self) -> Vec<(String, String)> {
        let Some((name, list)) = self.exporter("HEADERS") else { return Vec::new() };
        let (good, bad): (Vec<_>, Vec<_>) = self.pairs(&name, &list).into_iter().partition(|(key, value)| {
            hyper::header::HeaderName::try_from(key).is_ok()
                && hyper::header::HeaderValue::try_from(value).is_ok()
        });
        if !bad.is_empty() {
            self.pass_over(&name, "an entry is no header");
        }
        good
    }

    /// What is said about the whole service: its name, and the rest.
    fn resource(&mut self) -> (String, Vec<(String, String)>) {
        const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let list = self.get(NAME).unwrap_or_default();
        let mut attributes = self.pairs(NAME, &list);
        let own = attributes.iter().position(|(key, _)| key == "service.name");
        let named = own.map(|at| attributes.remove(at).1);
        let service = self.get("OTEL_SERVICE_NAME").or(named);
        (service.unwrap_or_else(|| SERVICE.to_owned()), attributes)
    }
}

fn settings(asked: &Asked, said: &mut Said<'_>) -> anyhow::Result<Option<Settings>> {
    let flagged = asked.endpoint.as_deref().map(traces_below).transpose().map_err(anyhow::Error::msg)?;
    let is_flagged = flagged.is_some();
    let Some(target) = flagged.or_else(|| said.target()) else {
        if asked.share.is_some() || asked.content {
            return usage(
                "--otlp-sample and --otlp-content need a collector: add --otlp URL, or set OTEL_EXPORTER_OTLP_ENDPOINT",
            );
        }
        return Ok(None);
    };
    let encoding = match said.encoding() {
        Some(encoding) => encoding,
        None if is_flagged => Encoding::Protobuf,
        None => return Ok(None),
    };
    let sampler = said.sampler();
    let sampler = match asked.share {
        Some(share) => Sampler::default().with_share(share),
        None => sampler,
    };
    let (service, attributes) = said.resource();
    Ok(Some(Settings {
        target,
        encoding,
        headers: said.headers(),
        roots: said.exporter("CERTIFICATE").map(|(_, path)| path.into()),
        timeout: said.timeout(),
        service,
        attributes,
        sampler,
        content: asked.content,
    }))
}

/// The place of traces below an endpoint for all signals. One that names it already is taken as it is.
fn traces_below(endpoint: &str) -> Result<Target, String> {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with(TRACES) { base.parse() } else { format!("{base}/{TRACES}").parse() }
}

/// A text with its percent signs resolved.
fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text.trim()).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn under(asked: &Asked, variables: &[(&str, &str)]) -> (anyhow::Result<Option<Settings>>, Vec<String>) {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        let mut said = Said { variable: &variable, wrong: Vec::new() };
        let settings = settings(asked, &mut said);
        (settings, said.wrong)
    }

    fn flag(endpoint: &str) -> Asked {
        Asked { endpoint: Some(endpoint.into()), ..Asked::default() }
    }

    fn url(asked: &Asked, variables: &[(&str, &str)]) -> Option<String> {
        under(asked, variables).0.unwrap().map(|settings| settings.target.to_string())
    }

    const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const OWN: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

    #[test]
    fn nothing_is_exported_unless_somebody_says_where() {
        assert_eq!(url(&Asked::default(), &[]), None);
        assert_eq!(url(&Asked::default(), &[(ALL, "  ")]), None);
        assert_eq!(url(&Asked::default(), &[(ALL, "http://c:4318"), ("OTEL_SDK_DISABLED", "TRUE")]), None);
        assert_eq!(url(&Asked::default(), &[(ALL, "http://c:4318"), ("OTEL_TRACES_EXPORTER", "none")]), None);
        let share = Asked { share: "0.5".parse().ok(), ..Asked::default() };
        assert!(under(&share, &[]).0.unwrap_err().to_string().contains("need a collector"));
    }

    #[test]
    fn an_endpoint_for_all_signals_gets_the_path_of_traces() {
        let at = |endpoint| url(&Asked::default(), &[(ALL, endpoint)]).unwrap();
        assert_eq!(at("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(at("https://c/otlp/"), "https://c:443/otlp/v1/traces");
        assert_eq!(at("http://c:4318/v1/traces"), "http://c:4318/v1/traces");
        let own = [(ALL, "http://c:4318"), (OWN, "http://d:1/in"), ("OTEL_TRACES_EXPORTER", "otlp,console")];
        assert_eq!(
            url(&Asked::default(), &own).unwrap(),
            "http://d:1/in",
            "one for traces is taken as it is"
        );
        assert_eq!(url(&flag("http://e:2"), &own).unwrap(), "http://e:2/v1/traces", "flags win");
    }

    #[test]
    fn what_a_variable_says_wrong_is_told_and_passed_over() {
        for (name, value, part) in
            [(ALL, "c:4318", "nothing is traced"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "port 4318")]
        {
            let given = [(ALL, "http://c:4318"), (name, value)];
            let (settings, wrong) = under(&Asked::default(), &given);
            assert_eq!(settings.unwrap(), None, "{name}");
            assert!(wrong.len() == 1 && wrong[0].contains(part) && wrong[0].contains(name), "{wrong:?}");
        }
        for (name, value) in [
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
        ] {
            let (settings, wrong) = under(&flag("http://c:4318"), &[(name, value)]);
            let (usual, _) = under(&flag("http://c:4318"), &[]);
            assert_eq!(settings.unwrap(), usual.unwrap(), "{name}");
            assert!(wrong.len() == 1 && wrong[0].contains(name), "{wrong:?}");
        }
        let grpc = [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert!(url(&flag("http://c:4318"), &grpc).is_some(), "a flag says where, so somebody listens there");
    }

    #[test]
    fn variables_say_how_and_which() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, x-team = a"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment.name=lab"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ];
        let (settings, wrong) = under(&flag("http://c:4318"), &variables);
        let settings = settings.unwrap().unwrap();
        assert_eq!(wrong, [""; 0]);
        assert_eq!((settings.encoding, settings.timeout), (Encoding::Json, Duration::from_millis(250)));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(settings.headers, [pair("authorization", "Bearer x"), pair("x-team", "a")]);
        assert_eq!(settings.service, "other");
        assert_eq!(settings.attributes, [pair("deployment.environment.name", "lab")]);
        assert_eq!(settings.roots, Some("ca.pem".into()));
        let quarter = "0.25".parse().unwrap();
        assert_eq!(settings.sampler, Sampler::named("traceidratio").unwrap().with_share(quarter));
        let tenth = "0.1".parse().unwrap();
        let asked = Asked { share: Some(tenth), content: true, ..flag("http://c:4318") };
        let named = [("OTEL_SERVICE_NAME", "llm"), ("OTEL_TRACES_SAMPLER", "always_off")];
        let settings = under(&asked, &named).0.unwrap().unwrap();
        assert_eq!(settings.sampler, Sampler::default().with_share(tenth), "flags win");
        assert_eq!((settings.service.as_str(), settings.content), ("llm", true));
    }

    #[test]
    fn what_a_flag_says_wrong_is_wrong_usage() {
        let refused = |endpoint: Option<&str>, share| {
            Asked::new(endpoint.map(str::to_owned), share, None).unwrap_err().to_string()
        };
        assert!(refused(Some("c:4318"), None).contains("write http://host:port"));
        assert!(refused(Some("grpc://c:4317"), None).contains("write http://host:port"));
        assert!(refused(None, Some("half")).contains("from 0 to 1"));
    }
}
