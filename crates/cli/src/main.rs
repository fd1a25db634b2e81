//! The binary `paceline`; everything is in the library beside it, so that tests reach it.
#![forbid(unsafe_code)]

fn main() {
    llama::exit(cli::main(std::env::args_os()))
}
