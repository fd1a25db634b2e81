//! What a person may write: the flags of every command and, with the same names, the keys of `paceline.toml`.
//!
//! Owns names, help texts and which source wins. Does not judge values: [`crate::args`] does, once for both sources.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde::Deserialize;

pub(crate) mod cluster;
mod measure;

use cluster::ClusterFlags;
pub(crate) use measure::{BenchFlags, SimulateFlags};

const OVERVIEW: &str = "\
Paceline serves one large language model from several ordinary machines. The model's layers are cut into ranges, one
per stage; a token visits every stage. Clients speak the OpenAI API to the front.";

const EXAMPLES: &str = "\
Examples:
  Serve a model from this machine and talk to it:
      paceline serve model.gguf
      curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
          -d '{\"model\":\"default\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'

  The same from three processes on this machine:
      paceline serve model.gguf --stages 3

  From two machines (once: `paceline cluster new` and `paceline cluster invite` on the first):
      second$ paceline stage --join TICKET --models ~/models
      first$  paceline serve model.gguf --stage second:7411

Every flag can be a key of a file given with --config: flags of `serve` belong under [serve], and so on.
Exit codes: 0 done, 1 failed, 2 wrong usage.";

const SERVE_EXAMPLES: &str = "\
Examples:
  paceline serve model.gguf                                   one process
  paceline serve model.gguf --stages 3                        three processes, layers shared out by size
  paceline serve model.gguf --cuts 10,20                      three processes, cut before layers 10 and 20
  paceline serve model.gguf --stage b:7411 --stage c:7411     this machine, then b, then c
  paceline serve model.gguf --stage b:7411 --stage c:7411 --spare d:7411
                                                              the same, and d takes the place of b or c if one is lost
  paceline serve model.gguf --stages 2 --link delay=10ms,rate=100mbit
                                                              try how the line feels over a slow network
  paceline serve model.gguf --stages 3 --speculate auto,draft=small.gguf
                                                              guess ahead, also with a second model

The port opens at once; until a token has passed through every stage, requests get 503 with the reason and progress.
The model answers to its file's name without the ending (or --model-id), and to `default`.";

const STAGE_EXAMPLES: &str = "\
Examples:
  paceline stage --models /data/models                        wait on port 7411 for a front of this cluster
  paceline stage --listen 10.0.0.2:7411 --threads 8

A stage waits empty until a front of the same cluster gives it a range of layers. It finds the model by its content,
not by its name, in --models or among the slices that it keeps. The machine needs to be enrolled first: see
`paceline cluster --help`.";

const SPLIT_EXAMPLES: &str = "\
Examples:
  paceline split model.gguf --stages 3 --out slices           ranges of about equal size
  paceline split model.gguf --cuts 10,20 --out slices         layers 0 to 9, 10 to 19, 20 to the end

`serve` cuts by itself and keeps the slices; this command is for looking at them or carrying them elsewhere.";

const VERIFY_EXAMPLES: &str = "\
Examples:
  paceline verify model.gguf                                  three stages
  paceline verify model.gguf --cuts 1,7

Runs the real slices over real links beside the whole model, on random and on text prompts, and prints the largest
difference of a logit and the first token that differs. Exit code 1 if there is any.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, about = "One model, a line of machines, the OpenAI API.")]
#[command(long_about = OVERVIEW, after_help = EXAMPLES, max_term_width = 110, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) global: GlobalFlags,
    #[command(subcommand)]
    pub(crate) command: CommandFlags,
}

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct GlobalFlags {
    /// Read settings from this TOML file; flags win over it
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Log more to standard error: -v for information, -vv for details, -vvv for everything
    #[arg(short = 'v', global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Log by this filter instead, for example `info,net=debug`
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Write lines for people (text), or objects for programs (json) [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
}

/// One command with its flags.
#[derive(Debug, Subcommand)]
pub(crate) enum CommandFlags {
    /// Serve a model over HTTP from a line of stages
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeFlags>),
    /// Lend this machine to a front: wait for a range of layers and compute it
    #[command(after_help = STAGE_EXAMPLES)]
    Stage(StageFlags),
    /// Say which machines trust each other
    #[command(after_help = cluster::EXAMPLES)]
    Cluster(ClusterFlags),
    /// Cut a model into slices, one file per range of layers
    #[command(after_help = SPLIT_EXAMPLES)]
    Split(SplitFlags),
    /// Say what a model, a slice or a folder of slices holds
    Inspect {
        /// A GGUF file (the first of several is fine) or a folder of slices
        path: PathBuf,
    },
    /// Say how fast a line would be, and how far it should guess ahead
    #[command(after_help = measure::SIMULATE_EXAMPLES)]
    Simulate(Box<SimulateFlags>),
    /// Check that a line computes exactly what the whole model computes
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyFlags),
    /// Measure a model on a line of this machine, or a server that runs
    #[command(after_help = measure::BENCH_EXAMPLES)]
    Bench(Box<BenchFlags>),
    /// Run chat templates for a front, which starts this by itself
    #[command(hide = true)]
    Template,
}

/// Lets every field given here win over the same field of a file.
macro_rules! layered {
    ($name:ident: $($field:ident),+ $(,)?) => {
        impl $name {
            /// These settings where they say something, `below` elsewhere.
            pub(crate) fn over(self, below: Self) -> Self {
                Self { $($field: self.$field.or(below.$field)),+ }
            }
        }
    };
}
use layered;

/// Settings of `serve`.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ServeFlags {
    /// The model: a GGUF file (the first of several is fine)
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Answer HTTP here [default: 127.0.0.1:8080; port 0 takes a free one]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Cut the model into N stages, each a process on this machine [default: 1]
    #[arg(long, value_name = "N", conflicts_with_all = ["line", "stage"])]
    pub(crate) stages: Option<u16>,
    /// Begin stages 1, 2, … at these layers instead of sharing out by size
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) cuts: Option<Vec<u32>>,
    /// Take the other machines, in order, from this TOML file
    #[arg(long, value_name = "FILE", conflicts_with = "stage")]
    pub(crate) line: Option<PathBuf>,
    /// Another machine's stage, in order; give it once per machine
    #[arg(long, value_name = "ADDR")]
    pub(crate) stage: Option<Vec<String>>,
    /// Another machine's stage that stands by with the layers of one stage loaded, and takes its place when it is lost:
    /// host:port for any stage outside this process, host:port=N for stage N only; give it once per machine
    #[arg(long, value_name = "ADDR[=N]")]
    pub(crate) spare: Option<Vec<String>>,
    /// On one machine: as many more processes that stand by [default: 0]
    #[arg(long, value_name = "N", conflicts_with_all = ["line", "stage", "spare"])]
    pub(crate) spares: Option<u16>,
    /// How long a machine that is away is still counted on to hold its layers; after that it is shown as gone
    /// [default: 120s]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease: Option<String>,
    /// Compute no layers here: leave all to the named machines
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) front_only: Option<bool>,
    /// Positions per sequence [default: what the model was trained for, at most 8192]
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<u32>,
    /// Sequences computed at once [default: 4]
    #[arg(long, value_name = "N")]
    pub(crate) parallel: Option<u16>,
    /// Threads per stage [default: this machine's cores, shared out; a draft model gets one of them, or up to four
    /// where they are left over]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u16>,
    /// Layers per stage to keep on the GPU [default: all, if there is one]
    #[arg(long, value_name = "N")]
    pub(crate) gpu_layers: Option<u32>,
    /// The GPU to use, by its name in `-v` output
    #[arg(long, value_name = "D")]
    pub(crate) device: Option<String>,
    /// Make every link behave like this network: delay=10ms,jitter=2ms,rate=100mbit,loss=0.1%
    #[arg(long, value_name = "SHAPE")]
    pub(crate) link: Option<String>,
    /// Reach every stage through its neighbour instead of directly
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) relay: Option<bool>,
    /// How hidden rows travel: f32 (exact), bf16, f16 or q8 [default: f32]
    #[arg(long, value_name = "TYPE")]
    pub(crate) row_dtype: Option<String>,
    /// Guess ahead with these sources, in order: suffix, predicted, unigram, mtp (the model's own blocks that draft, NextN),
    /// draft=PATH (a small model with the same vocabulary); or auto, or auto,draft=PATH, or off [default: off]
    #[arg(long, value_name = "LIST")]
    pub(crate) speculate: Option<String>,
    /// Rows in a window of guesses, 1 to 16 [default: chosen from what is measured]
    #[arg(long, value_name = "W")]
    pub(crate) width: Option<u32>,
    /// Windows under way at once, 1 to 64 [default: chosen from what is measured]
    #[arg(long, value_name = "D")]
    pub(crate) depth: Option<u32>,
    /// Tokens that the model's own blocks draft at a time, 1 to 8 [default: as many as pay, up to 4]
    #[arg(long, value_name = "N")]
    pub(crate) draft_len: Option<u8>,
    /// Compute so that no result depends on what shares a batch with it; CPU only, slower prompts
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) exact: Option<bool>,
    /// How keys and values are stored: f16, q8_0 or q4_0 [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<String>,
    /// Have layers that look back over a window only (Gemma) keep every position; false takes less memory, but computed
    /// prompts serve only those that go on from all of them [default: true]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) swa_full: Option<bool>,
    /// Memory of each stage for the beginnings of earlier prompts, in MiB; 0 keeps only what no slot needs
    /// [default: 1024]
    #[arg(long, value_name = "MIB")]
    pub(crate) cache_ram: Option<u32>,
    /// Disk of this machine for the beginnings of earlier prompts, in MiB: they outlive the process. What is kept can be
    /// read by whoever reads the disk [default: 0, off]
    #[arg(long, value_name = "MIB")]
    pub(crate) cache_disk: Option<u32>,
    /// The folder for that [default: ~/.cache/paceline/prefixes]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Requests that may wait; more are sent away to try again later [default: 128]
    #[arg(long, value_name = "N")]
    pub(crate) queue: Option<u32>,
    /// How long each of them may wait before it is sent away, too [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) queue_timeout: Option<String>,
    /// How long running requests wait for a line in place of a lost one before they fail: `10s`, `500ms`; at `0s` they
    /// fail at once [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) replay_timeout: Option<String>,
    /// A stage that shows life but finishes no work for so long, or twenty times as long as the work should take if that is
    /// more, is given up, at least 1s [default: 45s]
    #[arg(long, value_name = "TIME")]
    pub(crate) progress_timeout: Option<String>,
    /// When a machine was away for so long and nothing can take its place, the others share its layers, if they have the
    /// model and can load more of it; they share them as before when all are back and the line has rested for as long.
    /// Less than --replay-timeout, so that running requests can go on [default: off]
    #[arg(long, value_name = "TIME")]
    pub(crate) replan_after: Option<String>,
    /// How long running requests may go on when the front is told to end; a second signal ends them at once
    /// [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) grace: Option<String>,
    /// How often front and stages show each other that they live: `250ms`, `2s` [default: 250ms]
    #[arg(long, value_name = "TIME")]
    pub(crate) heartbeat: Option<String>,
    /// A stage that shows no life for so long is given up, at least twice the heartbeat; one that computes shows it all
    /// the time [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub(crate) dead_after: Option<String>,
    /// This machine's key and membership [default: those that `cluster new` or `cluster enroll --join` left]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// Ask clients for one of the keys in this file, one a line; a change of the file counts from the next request on
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// A system prompt that everybody's chats may begin with: what is computed of it serves all API keys. Repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_prompt: Option<Vec<PathBuf>>,
    /// Speak HTTPS with this certificate (PEM, the server's own first); read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let web pages of these origins call the API, such as https://chat.example; * lets all [default: none]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors: Option<Vec<String>>,
    /// Send a trace of each request to this collector, over OTLP/HTTP: http://host:4318 [default: what
    /// OTEL_EXPORTER_OTLP_ENDPOINT says; see docs/tracing.md]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Trace this share of the requests that no caller has decided about, 0 to 1 [default: 1]
    #[arg(long, value_name = "SHARE")]
    pub(crate) otlp_sample: Option<String>,
    /// Let traces tell prompts and answers
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) otlp_content: Option<bool>,
    /// The name that the model answers to [default: its file's name without the ending]
    #[arg(long, value_name = "ID")]
    pub(crate) model_id: Option<String>,
}

layered!(ServeFlags: model, listen, stages, cuts, line, stage, spare, spares, lease,
    front_only, ctx, parallel, threads, gpu_layers, device,
    link, relay, row_dtype, speculate, width, depth, draft_len, exact, kv_type, swa_full, cache_ram, cache_disk, cache_dir,
    queue, queue_timeout, replay_timeout, progress_timeout, replan_after, grace, heartbeat, dead_after, cluster, api_key_file,
    shared_prompt,
    tls_cert, tls_key,
    cors, otlp, otlp_sample, otlp_content, model_id);

/// Settings of `stage`.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct StageFlags {
    /// Wait for fronts here [default: 0.0.0.0:7411]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// This machine's key and membership [default: those that `cluster enroll --join` left]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// Become a member first, with the ticket of `cluster invite`; ignored on a machine that is a member
    #[arg(long, value_name = "TICKET")]
    #[serde(skip)]
    pub(crate) join: Option<String>,
    /// Look for models in this folder, whatever their names; not in folders below it
    #[arg(long, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// Threads [default: this machine's cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u16>,
    /// How long the stage, with its loaded layers, is kept for a front that is gone; meanwhile no other front is taken
    /// [default: 120s]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease: Option<String>,
    /// How long the front may take to finish what runs, or to hand over to a spare, when this process is told to end
    /// [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) grace: Option<String>,
    /// Let a neighbour pass on what the front commands, where the front cannot reach this machine; whoever may do that,
    /// which is every stage of the cluster, can command it as well
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) relayed: Option<bool>,
    /// Layers to keep on the GPU [default: all, if there is one]
    #[arg(long, value_name = "N")]
    pub(crate) gpu_layers: Option<u32>,
    /// The GPU to use, by its name in `-v` output
    #[arg(long, value_name = "D")]
    pub(crate) device: Option<String>,
    /// Make the link to the next stage behave like this network
    #[arg(long, value_name = "SHAPE")]
    pub(crate) link: Option<String>,
    /// Memory for the beginnings of earlier prompts, in MiB, at most, whatever the front asks for [default: what it asks for]
    #[arg(long, value_name = "MIB")]
    pub(crate) cache_ram: Option<u32>,
    /// Disk of this machine for the beginnings of earlier prompts, in MiB: they outlive the process. What is kept can be
    /// read by whoever reads the disk [default: 0, off]
    #[arg(long, value_name = "MIB")]
    pub(crate) cache_disk: Option<u32>,
    /// The folder for that [default: ~/.cache/paceline/prefixes]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Started by a front: membership and peer come on standard input, and the end of it ends the process
    #[arg(long, hide = true, num_args = 0, default_missing_value = "true")]
    #[serde(skip)]
    pub(crate) child: Option<bool>,
}

layered!(StageFlags: listen, cluster, join, models, threads, lease, grace, relayed, gpu_layers, device, link, cache_ram, cache_disk, cache_dir, child);

/// Settings of `split`.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SplitFlags {
    /// The model: a GGUF file (the first of several is fine)
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Cut into N ranges of about equal size
    #[arg(long, value_name = "N", conflicts_with = "cuts")]
    pub(crate) stages: Option<u16>,
    /// Cut before these layers
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) cuts: Option<Vec<u32>>,
    /// Write the slices and their manifest into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

layered!(SplitFlags: model, stages, cuts, out);

/// Settings of `verify`.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct VerifyFlags {
    /// The model: a GGUF file (the first of several is fine)
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Cut into N stages [default: 3]
    #[arg(long, value_name = "N", conflicts_with = "cuts")]
    pub(crate) stages: Option<u16>,
    /// Begin stages 1, 2, … at these layers
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) cuts: Option<Vec<u32>>,
    /// Threads per stage [default: this machine's cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u16>,
}

layered!(VerifyFlags: model, stages, cuts, threads);
