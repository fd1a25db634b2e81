//! `paceline stage`: a node that waits for a front and computes the layers that it is given.
//!
//! Alone, it is a member of a cluster and runs until it is told to end. As a child of a front it takes its identity from
//! its standard input and ends when that closes, however the front ended.

use std::io::{BufRead, BufReader, Read as _, Stdin, Write as _};
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, bail};
use line::{Node, NodeConfig};
use net::{DialOptions, Heartbeat, Identity, Listener, ListenerOptions};
use tokio::sync::oneshot;

use crate::args::StageArgs;
use crate::children::{END_OF_IDENTITY, LISTENING};
use crate::engines::{EngineOptions, Engines};
use crate::{cluster, disk, invite, logging, signals, standing};

/// An identity is a few kilobytes; a parent that sends more is not one of ours.
const MAX_IDENTITY_BYTES: u64 = 64 * 1024;

pub(crate) fn run(args: StageArgs) -> anyhow::Result<()> {
    let (identity, parent_gone) = if args.child {
        let (identity, gone) = from_parent()?;
        (identity, Some(gone))
    } else {
        if let Some(ticket) = &args.join {
            join(&args, ticket)?;
        }
        (cluster::identity(args.cluster.as_deref(), net::Role::Stage)?, None)
    };
    let runtime = signals::line_runtime()?;
    let served = runtime.block_on(serve(&args, identity, parent_gone));
    // An engine that is still loading cannot be interrupted and must not hold up the end.
    runtime.shutdown_background();
    served
}

/// Makes a member of this machine, unless it is one: so a service may always be started in the same way.
fn join(args: &StageArgs, ticket: &net::Ticket) -> anyhow::Result<()> {
    if args.cluster.is_some() {
        bail!("--join keeps what it gets in the usual place: leave --cluster out");
    }
    let dir = crate::paths::cluster_dir()?;
    if cluster::is_member(&dir) { Ok(()) } else { invite::join(&dir, ticket) }
}

async fn serve(
    args: &StageArgs,
    identity: Identity,
    parent_gone: Option<oneshot::Receiver<()>>,
) -> anyhow::Result<()> {
    let mut end = signals::EndSignals::listen()?;
    let mut options = ListenerOptions::default();
    options.link.shape.clone_from(&args.link);
    options.relayed = args.relayed;
    let listener = Listener::bind(&args.listen.to_string(), &identity, options).await?;
    let address = listener.local_addr();
    if !args.child {
        let file = standing::identity_file(args.cluster.as_deref())?;
        tokio::spawn(standing::keep(identity.clone(), file));
    }
    let node = Node::start(node_config(args, identity)?);
    if args.child {
        // The front waits for this line; if it is gone, so is this process soon.
        let mut out = std::io::stdout().lock();
        writeln!(out, "{LISTENING}{address}").and_then(|()| out.flush())?;
    } else {
        logging::say(&format!("Stage {} waits for a front on {address}", node.id().short()));
    }
    let ended = async {
        match parent_gone {
            // An error means that the reading thread ended: standard input is closed then, too.
            Some(gone) => drop(gone.await),
            None => {
                end.next().await;
                logging::say(&format!(
                    "Stopping: the front is told, and has {} s to finish or to hand over.",
                    args.grace.as_secs_f32()
                ));
                tokio::select! {
                    () = node.leave() => {}
                    () = tokio::time::sleep(args.grace) => {}
                    () = end.next() => {}
                }
            }
        }
    };
    tokio::select! {
        served = node.serve(listener) => Ok(served?),
        () = ended => Ok(()),
    }
}

fn node_config(args: &StageArgs, identity: Identity) -> anyhow::Result<NodeConfig> {
    let options = EngineOptions {
        threads: args.threads.map_or_else(signals::cores, u32::from),
        gpu_layers: args.gpu_layers,
        device: args.device.clone(),
    };
    let mut dial = DialOptions::default();
    dial.link.shape.clone_from(&args.link);
    Ok(NodeConfig {
        identity,
        store: disk::of_stage(disk::open(&args.disk)?, &options),
        source: Arc::new(Engines::new(args.models.clone(), options)),
        build: signals::build(),
        dial,
        heartbeat: Heartbeat::default(),
        lease: args.lease,
        most_prefix_bytes: args.most_prefix_bytes,
    })
}

/// Reads this child's identity, and leaves a thread behind that says when the front has gone.
pub(crate) fn from_parent() -> anyhow::Result<(Identity, oneshot::Receiver<()>)> {
    let mut input = BufReader::new(std::io::stdin());
    let identity =
        Identity::from_pem(&identity_text(&mut input)?).context("the identity on standard input")?;
    let (gone, parent_gone) = oneshot::channel();
    thread::Builder::new()
        .name("parent".to_owned())
        .spawn(move || {
            drain(&mut input);
            // Nobody listens if the process is ending anyway.
            let _ = gone.send(());
        })
        .context("could not start the thread that watches the front")?;
    Ok((identity, parent_gone))
}

fn identity_text(input: &mut BufReader<Stdin>) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut lines = input.by_ref().take(MAX_IDENTITY_BYTES);
    loop {
        let before = text.len();
        if lines.read_line(&mut text).context("could not read standard input")? == 0 {
            bail!("--child is for stages that a front starts: it expects an identity on standard input");
        }
        if text[before..].trim_end() == END_OF_IDENTITY {
            text.truncate(before);
            return Ok(text);
        }
    }
}

/// Waits for the end of the input.
fn drain(input: &mut BufReader<Stdin>) {
    let mut ignored = [0; 256];
    while matches!(input.read(&mut ignored), Ok(n) if n > 0) {}
}
