//! The commands about questions and agreements, with their help.

use clap::{Subcommand, ValueEnum};
use portcullis::model::role::Role;

/// What to do with questions and agreements. Ids may be shortened while they stay unambiguous.
#[derive(Debug, Subcommand)]
pub(crate) enum Approvals {
    /// List the questions that wait for an answer
    #[command(after_long_help = "\
Examples:
  portcullis approvals list
  portcullis approvals list --all --format json")]
    List {
        /// Those that were answered or have expired, too
        #[arg(long)]
        all: bool,
    },
    /// Show a question whole, and what became of it
    #[command(after_long_help = "\
Example:
  portcullis approvals show ask_019a")]
    Show {
        /// The question
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Allow the call that a question is about
    #[command(after_long_help = "\
Examples:
  portcullis approvals allow ask_019a
  portcullis approvals allow ask_019a --scope session")]
    Allow {
        /// The question
        #[arg(value_name = "ID")]
        id: String,
        /// How long that is remembered; only what the question offers
        #[arg(long, value_enum, default_value_t = Scope::Once, value_name = "SCOPE")]
        scope: Scope,
    },
    /// Refuse the call that a question is about
    #[command(after_long_help = "\
Example:
  portcullis approvals deny ask_019a")]
    Deny {
        /// The question
        #[arg(value_name = "ID")]
        id: String,
    },
    /// List the remembered agreements; those of sessions are in their process alone
    #[command(after_long_help = "\
Example:
  portcullis approvals grants --format json")]
    Grants,
    /// Forget remembered agreements
    #[command(after_long_help = "\
Examples:
  portcullis approvals forget grant_019a
  portcullis approvals forget --server files
  portcullis approvals forget --all")]
    Forget {
        /// The agreement
        #[arg(value_name = "GRANT", required_unless_present_any = ["all", "server"], conflicts_with_all = ["all", "server"])]
        grant: Option<String>,
        /// All of them
        #[arg(long, conflicts_with = "server")]
        all: bool,
        /// Those about tools of this server
        #[arg(long, value_name = "SERVER")]
        server: Option<String>,
    },
    /// Set or remove the key that allows without a terminal
    #[command(subcommand)]
    Key(ApproverKey),
}

/// What to do with the approver key.
#[derive(Debug, Subcommand)]
pub(crate) enum ApproverKey {
    /// Make a new key; it is shown once, at the terminal, and replaces an older one
    ///
    /// What a layer asks of certain roles only (`approvals.roles`) is allowed by a key that carries one of them.
    #[command(after_long_help = "\
Examples:
  portcullis approvals key set
  portcullis approvals key set --role security --role on-call")]
    Set {
        /// A role that the key carries; may be given several times
        #[arg(long = "role", value_name = "ROLE", value_parser = Role::parse)]
        roles: Vec<Role>,
    },
    /// Remove the key: only terminals can allow
    #[command(after_long_help = "\
Example:
  portcullis approvals key remove")]
    Remove,
}

/// How long an agreement is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// For this call only.
    Once,
    /// For the session that asks.
    Session,
    /// Until something that it binds changes.
    Always,
}
