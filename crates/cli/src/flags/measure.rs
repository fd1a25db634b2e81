//! Flags of `paceline simulate` and `paceline bench`, with the same names as keys of `paceline.toml`.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::layered;

pub(super) const SIMULATE_EXAMPLES: &str = "\
Examples:
  paceline simulate                                           four CPUs, 10 ms apart
  paceline simulate --stages 8 --delay 40ms --stage-time 3 --per-row 0.05
                                                              eight GPUs, far apart: a row more costs little
  paceline simulate --stage-time 5,8,5                        three stages, the middle one slower
  paceline simulate --stage-time 1:5/4:6/8:9/16:15            a call's time by its rows, in steps
  paceline simulate --agreement 0.6,0.8                       guesses that are right so often, as of a draft model
  paceline simulate --workload copy,json --clients 4 --json forecast.json

Runs the scheduler, the controller and the stages that `serve` runs, in virtual time: nothing is measured, no model is
needed, and the same arguments give the same figures. The texts are synthetic. Each table has the tokens per second of
fixed choices; the last one compares them with plain decoding and with what `--speculate auto` makes of it.

To know what your machines take: `serve` reports each stage's compute time in the `timings` of every answer.";

pub(super) const BENCH_EXAMPLES: &str = "\
Examples:
  paceline bench model.gguf                                   plain decoding against guessing, all workloads
  paceline bench model.gguf --stages 2,4 --link delay=10ms --link delay=40ms --workload copy,chat --plot plots
                                                              lines of two lengths over two networks, with pictures
  paceline bench model.gguf --stages 3 --speculate off,suffix,predicted+suffix --json out.json
                                                              who guesses best; sources of one line are joined by +
  paceline bench --url http://127.0.0.1:8080 --concurrency 4  a server that runs already, of any make

Workloads: copy (repeat a passage), edit (a file of 150 lines with one change; the client sends the file as the expected
answer), code, summary, chat, novel, json, form (fill in a form whose JSON schema the client sends). All are answered
greedily.

For each length and link, one line per entry of --speculate is started, and they answer in turn, so that whatever else
the machine does falls on all of them; they are all in memory at once. The last column compares each with the first.
Small models repeat themselves, and whoever repeats himself is easily guessed: look at `distinct` (share of the runs of
three words that are new) and `as asked` before you believe a speed.";

/// Settings of `simulate`.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SimulateFlags {
    /// Stages in the line, 1 to 16 [default: as many as times, or 4]
    #[arg(long, value_name = "N")]
    pub(crate) stages: Option<usize>,
    /// What each link between two machines takes one way, up to 200ms [default: 10ms]
    #[arg(long, value_name = "D")]
    pub(crate) delay: Option<String>,
    /// Milliseconds that a stage takes for one row, or by rows as 1:5/4:6/16:12; one for all or one each [default: 5]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) stage_time: Option<Vec<String>>,
    /// What a row more costs, as a share of the first one: near 0 on GPUs, up to 1 on CPUs [default: 0.5]
    #[arg(long, value_name = "SHARE")]
    pub(crate) per_row: Option<f64>,
    /// Texts: copy, edit, predicted, code, summary, chat, novel, json, or all [default: copy,edit,code,chat,novel]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) workload: Option<Vec<String>>,
    /// Guesses that are right with these probabilities, 0 to 1, instead of those found in the text
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) agreement: Option<Vec<f64>>,
    /// Requests at the same time, 1 to 16 [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) clients: Option<usize>,
    /// Tokens of an answer, 16 to 8192 [default: 512]
    #[arg(long, value_name = "N")]
    pub(crate) tokens: Option<usize>,
    /// Rows in a window to try, each 1 to 16 [default: 1,2,4,8,16]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) width: Option<Vec<u32>>,
    /// Windows in flight to try, each 1 to 64 [default: 1,2,4,8,12,16,24,32]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) depth: Option<Vec<u32>>,
    /// Write the figures into this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

layered!(SimulateFlags: stages, delay, stage_time, per_row, workload, agreement, clients, tokens, width, depth, json);

/// Settings of `bench`.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct BenchFlags {
    /// The model to serve: a GGUF file (the first of several is fine)
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Measure the OpenAI-compatible server that runs here instead
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// What to ask: copy, edit, code, summary, chat, novel, json, form [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) workload: Option<Vec<String>>,
    /// Lengths of the line [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) stages: Option<Vec<u16>>,
    /// Make links behave like this network, as `serve --link` does; give it once for each to be measured
    #[arg(long, value_name = "SHAPE")]
    pub(crate) link: Option<Vec<String>>,
    /// Who guesses, one line for each; the first is what the others are compared with [default: off,auto]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) speculate: Option<Vec<String>>,
    /// Rows in a window of guesses, 1 to 16 [default: chosen from what is measured]
    #[arg(long, value_name = "W")]
    pub(crate) width: Option<u32>,
    /// Windows under way at once, 1 to 64 [default: chosen from what is measured]
    #[arg(long, value_name = "D")]
    pub(crate) depth: Option<u32>,
    /// Serve so that no result depends on what shares a batch with it; CPU only
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) exact: Option<bool>,
    /// Threads per stage [default: this machine's cores, shared out]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u16>,
    /// Requests at once [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u16>,
    /// Requests of each workload on each line [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<u16>,
    /// Tokens of an answer at most [default: 96]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u16>,
    /// Show the server of --url the first key in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw tokens per second against delay into this folder, as SVG
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

layered!(BenchFlags: model, url, workload, stages, link, speculate, width, depth, exact, threads, concurrency, requests,
    max_tokens, api_key_file, json, plot);
