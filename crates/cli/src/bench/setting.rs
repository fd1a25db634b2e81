//! What is varied: the line's length, its links, and who guesses. And what comes out of it, as a row of the results.

use std::fmt;

use serde::Serialize;
use spec::Sources;

use super::workload::Workload;

/// One way to serve the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Stages on this machine.
    pub(super) stages: u16,
    /// How links are slowed down; as the user wrote it.
    pub(super) link: Option<String>,
    /// Who guesses.
    pub(super) strategy: Strategy,
    /// Rows in a window, if pinned.
    pub(super) width: Option<u32>,
    /// Windows under way, if pinned.
    pub(super) depth: Option<u32>,
    /// Whether results must not depend on batch shape.
    pub(super) exact: bool,
    /// Threads per stage, if the user says.
    pub(super) threads: Option<u16>,
    /// Sequences at once.
    pub(super) concurrency: u16,
}

/// Who guesses, as the user wrote it: `off`, `auto`, or sources joined by `+`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Strategy(String);

impl Strategy {
    /// What a server is told; it judges the sources itself, but their names are checked before anything is started.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let list = text.replace('+', ",");
        match list.parse::<Sources>() {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whatever a server that is running already does.
    pub(super) fn of_server() -> Self {
        Self("server".to_owned())
    }

    /// Whether nobody guesses.
    pub(super) fn is_off(&self) -> bool {
        self.0 == "off"
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Setting {
    /// The flags of a server that serves so.
    pub(super) fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        let mut flag = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                flags.extend([format!("--{name}"), value]);
            }
        };
        flag("stages", Some(self.stages.to_string()));
        flag("link", self.link.clone());
        flag("threads", self.threads.map(|n| n.to_string()));
        flag("parallel", Some(self.concurrency.to_string()));
        flag("speculate", Some(self.strategy.0.replace('+', ",")));
        if !self.strategy.is_off() {
            flag("width", self.width.map(|n| n.to_string()));
            flag("depth", self.depth.map(|n| n.to_string()));
        }
        if self.exact {
            flags.push("--exact".to_owned());
        }
        flags
    }
}

/// What one setting did with one workload: medians over its requests. Times in milliseconds; `null` where the server
/// does not say.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) workload: Workload,
    pub(super) stages: Option<u16>,
    pub(super) link: Option<String>,
    pub(super) speculate: Strategy,
    pub(super) width: Option<u32>,
    pub(super) depth: Option<u32>,
    pub(super) exact: bool,
    pub(super) concurrency: u16,
    pub(super) requests: usize,
    /// From sending the request to the first text.
    pub(super) ttft_ms: f64,
    /// Per token after the first text.
    pub(super) tpot_ms: f64,
    /// The same as a rate.
    pub(super) decode_tok_s: f64,
    /// Of all requests that ran at once, prompts included in the time.
    pub(super) total_tok_s: f64,
    /// Guesses that were right, per window that was answered.
    pub(super) accepted_per_window: Option<f64>,
    /// Windows that wait for a verdict at once, on average.
    pub(super) windows_in_flight: Option<f64>,
    /// Share of the windows that a wrong guess before them made useless.
    pub(super) stale_share: Option<f64>,
    /// Share of the decoding time for which each stage computed for the request, stage 0 first.
    pub(super) stage_busy: Vec<f64>,
    /// Of the texts of all requests in order, with a zero byte between each and the next.
    pub(super) text_sha256: String,
    /// Tokens of an answer.
    pub(super) tokens: f64,
    /// Share of an answer's runs of three words that occur for the first time in it.
    pub(super) distinct_3grams: f64,
    /// How far the answer is what was asked, 0 to 1.
    pub(super) as_asked: Option<f64>,
    /// Share of the answers in which the change asked for was made.
    pub(super) change_made: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(strategy: &str) -> Setting {
        Setting {
            stages: 4,
            link: Some("delay=10ms".into()),
            strategy: Strategy::parse(strategy).unwrap(),
            width: Some(4),
            depth: None,
            exact: true,
            threads: Some(1),
            concurrency: 2,
        }
    }

    #[test]
    fn a_server_is_told_what_is_measured() {
        let line = "--stages 4 --link delay=10ms --threads 1 --parallel 2 --speculate";
        assert_eq!(setting("auto").flags().join(" "), format!("{line} auto --width 4 --exact"));
        assert_eq!(setting("off").flags().join(" "), format!("{line} off --exact"));
        let both = setting("predicted+suffix").flags().join(" ");
        assert_eq!(both, format!("{line} predicted,suffix --width 4 --exact"));
        assert!(Strategy::parse("psychic").unwrap_err().contains("no source"));
    }

    #[test]
    fn rows_have_the_documented_form() {
        let row = Row {
            workload: Workload::Copy,
            stages: Some(2),
            link: Some("delay=10ms".into()),
            speculate: Strategy::parse("auto").unwrap(),
            width: None,
            depth: None,
            exact: true,
            concurrency: 1,
            requests: 8,
            ttft_ms: 80.5,
            tpot_ms: 4.0,
            decode_tok_s: 250.0,
            total_tok_s: 200.0,
            accepted_per_window: Some(3.5),
            windows_in_flight: Some(2.0),
            stale_share: Some(0.1),
            stage_busy: vec![0.5, 0.25],
            text_sha256: "00".into(),
            tokens: 96.0,
            distinct_3grams: 1.0,
            as_asked: Some(1.0),
            change_made: None,
        };
        let text = concat!(
            r#"{"workload":"copy","stages":2,"link":"delay=10ms","speculate":"auto","width":null,"depth":null,"#,
            r#""exact":true,"concurrency":1,"requests":8,"ttft_ms":80.5,"tpot_ms":4.0,"decode_tok_s":250.0,"#,
            r#""total_tok_s":200.0,"accepted_per_window":3.5,"windows_in_flight":2.0,"stale_share":0.1,"#,
            r#""stage_busy":[0.5,0.25],"text_sha256":"00","tokens":96.0,"distinct_3grams":1.0,"as_asked":1.0,"#,
            r#""change_made":null}"#
        );
        assert_eq!(serde_json::to_string(&row).unwrap(), text);
    }
}
