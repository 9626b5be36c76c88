//! The commands about records, with their help.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use portcullis::model::chain::Head;

use super::args::LayerWord;

/// What to do with the record of calls. Without FILE it is the folder that `[records]` keeps.
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Print the last lines of the record
    ///
    /// Of several files the newest one is read.
    #[command(after_long_help = "\
Examples:
  portcullis audit tail
  portcullis audit tail -n 50 --follow
  portcullis audit tail calls.jsonl --format json")]
    Tail {
        /// A file of records
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// How many lines, 0 to 100,000
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=100_000))]
        lines: u32,
        /// Go on with what is written to that file from now on, until interrupted
        #[arg(long)]
        follow: bool,
    },
    /// Show all that is recorded of one call; exits 1 if there is nothing
    #[command(after_long_help = "\
Examples:
  portcullis audit show call_019a0b
  portcullis audit show call_019a0b calls.jsonl --format json")]
    Show {
        /// The call's id
        #[arg(value_name = "CALL")]
        call: String,
        /// Files of records
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Verify that records are as they were written; exits 3 if they are not
    ///
    /// Names every line that was changed, removed, put elsewhere or put in, and every end that was cut off. The end of a chain
    /// is compared with the state store and with `--head`; what is behind that is told as unanchored. Give files of one chain
    /// in the order in which they were written.
    #[command(after_long_help = "\
Examples:
  portcullis audit verify
  portcullis audit verify calls.jsonl --key records.key
  portcullis audit verify calls.jsonl --head \"$HEAD\" --format json")]
    Verify {
        /// Files of records
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// A head that was printed earlier and kept elsewhere: CHAIN:LINES:DIGEST; may be given several times
        #[arg(long = "head", value_name = "HEAD")]
        heads: Vec<Head>,
        /// The file with a key of `audit key`, to check every line's mark; several where it was renewed. A chain under none of
        /// them is a finding: give the files since the key was made
        #[arg(long = "key", value_name = "KEYFILE")]
        keys: Vec<PathBuf>,
    },
    /// Make the key that records are marked under, and keep it in a file to be carried away
    ///
    /// Chains that begin from now on are marked under keys that follow from it. This machine keeps only what follows: with
    /// the file, marks can be checked; without it, nobody can make those of before. Move the file to where the host's user
    /// cannot read it.
    #[command(after_long_help = "\
Example:
  portcullis audit key records.key")]
    Key {
        /// The file, which must not exist
        #[arg(value_name = "KEYFILE")]
        file: PathBuf,
    },
}

/// Which decisions to take again.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Files of records. Default: the folder that `[records]` keeps
    #[arg(value_name = "RECORD")]
    pub records: Vec<PathBuf>,
}

/// Which decisions to take again, and by what.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The layer file to try
    #[arg(long, value_name = "FILE")]
    pub candidate: PathBuf,
    /// Which layer it would be
    #[arg(long, value_enum, value_name = "LAYER", default_value_t = LayerWord::User)]
    pub layer: LayerWord,
    /// A file of records; may be given several times. Default: the folder that `[records]` keeps
    #[arg(long, value_name = "LOG")]
    pub records: Vec<PathBuf>,
}
