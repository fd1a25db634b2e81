//! x
use crate::args::StageArgs;
pub(crate) fn run(args: StageArgs) -> anyhow::Result<()> { anyhow::bail!("{args:?}") }
