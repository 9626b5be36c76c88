//! The `portcullis` binary: parse, run, exit code.

mod cli;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let args = cli::args::Cli::parse();
    let format = args.global.format;
    cli::render::set_color(args.global.color);
    match cli::run(args) {
        Ok(exit) => exit.into(),
        Err(trouble) => {
            cli::render::trouble(&trouble, format);
            trouble.exit.into()
        }
    }
}
