//! The binary `line-bench`: measures a line on this machine against its bounds. See [`cli::bench`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::bench::main(std::env::args_os())
}
