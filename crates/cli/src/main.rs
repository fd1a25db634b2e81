//! The binary `paceline`; everything is in the library beside it, so that tests reach it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os())
}
