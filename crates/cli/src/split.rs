//! `paceline split`: slices of a model in a folder of the user's choice.

use std::io::{self, Write as _};

use gguf::{Model, Source};

use crate::args::SplitArgs;
use crate::inspect;
use crate::progress::Reporter;
use crate::slices::{self, Wanted};

pub(crate) fn run(args: &SplitArgs) -> anyhow::Result<()> {
    let model = Model::open(&args.model)?;
    let source = Source::new(&model)?;
    let plan = slices::plan(&source, &args.cut)?;
    let mut reporter = Reporter::default();
    let identity = slices::identity(&model, &mut |step, done, total| reporter.set(step, done, total))?;
    let all = Wanted { n: plan.stages.len(), plan };
    let made = slices::ensure_in(&args.out, &source, identity, all, &mut |step, done, total| {
        reporter.set(step, done, total);
    })?;
    drop(reporter);
    let mut out = io::stdout().lock();
    writeln!(out, "model {identity} in {} slices, {}:", made.paths.len(), args.out.display())?;
    for (stage, path) in made.plan.stages.iter().zip(&made.paths) {
        let (start, end) = (stage.range.start, stage.range.end);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        writeln!(out, "  {name}  layers {start} to {}, {}", end - 1, inspect::size(stage.bytes))?;
    }
    Ok(())
}
