//! `[records]`: where records are kept, and what happens if that fails (R34, R35).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stack::{Layer, Sourced};
use crate::model::layer::{LayerKind, LayerRef};

/// When a file gives way to the next where nobody says, in MiB.
pub const DEFAULT_ROTATE: u32 = 64;

/// `[records]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordsTable {
    /// Whether calls are recorded, in `$XDG_STATE_HOME/portcullis/records` unless `folder` says where. `false` leaves it to other layers: none switches off what another switched on. Not in projects. Builtin: `false`.
    pub keep: Option<bool>,
    /// The folder to keep them in, relative to the layer's file; made if it is missing, for its owner alone. Switches them on. Of several layers that keep records, the most trusted one says where. Not in projects.
    pub folder: Option<PathBuf>,
    /// What becomes of a call whose decision cannot be recorded: `refuse`, or `continue`, which the next record says and counts. Any layer may set `refuse`, only one whose allows count `continue`. Builtin: `refuse` (R34).
    pub on_failure: Option<OnFailure>,
    /// When a decision is on the disk: `never` (handed to the operating system before the call goes on: the end of the process takes nothing, a power cut the last moments) or `each` (before its call goes on). Any layer may set `each`, only one whose allows count `never`. Builtin: `never`.
    pub fsync: Option<Fsync>,
    /// From how many MiB on a file gives way to the next, 1 to 4096. The smallest value of all layers counts. Builtin: 64.
    pub rotate_mib: Option<u32>,
    /// Whether all that decisions are taken on, the arguments of calls included, is kept by value in files beside the records that only the owner reads, so that `portcullis policy replay` and `policy diff` can take them again. Any layer may switch it off; only one whose allows count may switch it on. Builtin: `false` (R35).
    pub inputs: Option<bool>,
}

/// What becomes of a call whose decision cannot be recorded. The stricter one is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It is refused.
    #[default]
    Refuse,
    /// It goes on; the next record says so.
    Continue,
}

/// When a decision is on the disk. The stricter one is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// Before its call goes on.
    Each,
    /// When the operating system sees fit.
    #[default]
    Never,
}

/// What all layers together say about records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    /// Where they are kept; none: nowhere.
    pub keep: Option<Sourced<KeptIn>>,
    /// What becomes of a call whose decision cannot be recorded.
    pub on_failure: Sourced<OnFailure>,
    /// When a decision is on the disk.
    pub fsync: Sourced<Fsync>,
    /// From how many MiB on a file gives way to the next.
    pub rotate_mib: Sourced<u32>,
    /// Whether inputs are kept by value.
    pub inputs: Sourced<bool>,
}

/// Where records are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeptIn {
    /// With the user's state.
    State,
    /// In this folder.
    Folder(PathBuf),
}

impl RecordsTable {
    /// Returns what is wrong with it in a layer of this kind: key and message.
    pub(crate) fn faults(&self, kind: LayerKind) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        if self.rotate_mib.is_some_and(|n| !(1..=4096).contains(&n)) {
            faults.push(("rotate_mib".to_owned(), "must lie between 1 and 4096".to_owned()));
        }
        if kind == LayerKind::Project {
            let message = "a project does not say where records are kept";
            faults.extend(self.keep.map(|_| ("keep".to_owned(), message.to_owned())));
            faults.extend(self.folder.as_ref().map(|_| ("folder".to_owned(), message.to_owned())));
        }
        faults
    }
}

/// Merges `[records]` of all layers, weak to strong: none loosens what another one says (R2, R3).
pub(super) fn resolve(layers: &[Layer]) -> Records {
    let mut all = Records {
        keep: None,
        on_failure: Sourced::builtin(OnFailure::default()),
        fsync: Sourced::builtin(Fsync::default()),
        rotate_mib: Sourced::builtin(DEFAULT_ROTATE),
        inputs: Sourced::builtin(false),
    };
    let mut refused_inputs = false;
    for layer in layers {
        let Some(table) = &layer.file.settings.records else { continue };
        let from = &layer.definer;
        all.on_failure.lower(table.on_failure, from, layer.may_allow);
        all.fsync.lower(table.fsync, from, layer.may_allow);
        all.rotate_mib.lower(table.rotate_mib, from, layer.may_allow);
        refused_inputs |= table.inputs == Some(false);
        let inputs = table.inputs.filter(|wanted| !wanted || layer.may_allow);
        all.inputs.replace(inputs.map(|wanted| wanted && !refused_inputs), from);
        all.keep = kept(table, layer, &layer.reference).into_iter().chain(all.keep.take()).reduce(more_trusted);
    }
    all
}

fn kept(table: &RecordsTable, layer: &Layer, from: &LayerRef) -> Option<Sourced<KeptIn>> {
    // Refused when the layer was read; the copy of a project that changed since is none that says so either.
    if from.kind() == LayerKind::Project {
        return None;
    }
    let value = match &table.folder {
        Some(folder) => KeptIn::Folder(layer.folder.join(folder)),
        None if table.keep == Some(true) => KeptIn::State,
        None => return None,
    };
    Some(Sourced { value, layer: from.clone() })
}

/// Of equally trusted layers the first one: the stronger, for they come weak to strong.
fn more_trusted(one: Sourced<KeptIn>, other: Sourced<KeptIn>) -> Sourced<KeptIn> {
    if one.layer.is_at_least_as_trusted_as(&other.layer) { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Places, Resolved, SessionSources, load};

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        load(&Places::nowhere(), &SessionSources::of_texts(layers, std::path::Path::new("/layers")))
    }

    fn records(layers: &[(LayerKind, &str)]) -> Records {
        let resolved = resolved(layers);
        assert!(resolved.refusals.is_empty() && resolved.problems.is_empty(), "{:?}", resolved.refusals);
        resolved.records
    }

    #[test]
    fn r34_nothing_is_kept_and_failure_refuses_unless_a_layer_says_otherwise() {
        let records = records(&[]);
        assert_eq!((records.keep, records.inputs.value), (None, false));
        assert_eq!((records.on_failure.value, records.fsync.value), (OnFailure::Refuse, Fsync::Never));
    }

    #[test]
    fn r2_no_layer_loosens_what_another_one_says_about_failures_and_the_disk() {
        use LayerKind::{Managed, Session, User};
        let strict = "[records]\non_failure = \"refuse\"\nfsync = \"each\"\n";
        let loose = "[records]\non_failure = \"continue\"\nfsync = \"never\"\n";
        for layers in [[(User, loose), (Managed, strict)], [(User, strict), (Managed, loose)]] {
            let records = records(&layers);
            assert_eq!((records.on_failure.value, records.fsync.value), (OnFailure::Refuse, Fsync::Each), "{layers:?}");
        }
        assert_eq!(records(&[(User, loose)]).on_failure.value, OnFailure::Continue);
        assert_eq!(records(&[(Session, loose)]).on_failure.value, OnFailure::Refuse, "R3");
    }

    #[test]
    fn r2_the_most_trusted_layer_that_keeps_records_says_where_and_none_switches_them_off() {
        use LayerKind::{Managed, Session, User};
        let keep = "[records]\nkeep = true\n";
        let folder = "[records]\nfolder = \"mine\"\n";
        let off = "[records]\nkeep = false\n";
        let place = |layers: &[(LayerKind, &str)]| records(layers).keep.map(|kept| (kept.layer.kind(), kept.value));
        assert_eq!(place(&[(Managed, keep), (User, folder)]), Some((Managed, KeptIn::State)));
        assert_eq!(place(&[(Managed, keep), (Session, off)]), Some((Managed, KeptIn::State)));
        assert_eq!(place(&[(User, off), (Managed, folder)]), Some((Managed, KeptIn::Folder("/layers/mine".into()))));
        assert_eq!(place(&[(User, keep), (Session, folder)]), Some((User, KeptIn::State)));
        assert_eq!(place(&[(Session, folder)]), Some((Session, KeptIn::Folder("/layers/mine".into()))));
    }

    #[test]
    fn r35_inputs_are_kept_only_if_a_layer_that_may_allow_says_so_and_none_refuses() {
        use LayerKind::{Managed, Session, User};
        let (on, off) = ("[records]\ninputs = true\n", "[records]\ninputs = false\n");
        assert!(records(&[(User, on)]).inputs.value);
        assert!(!records(&[(Session, on)]).inputs.value);
        assert!(!records(&[(Session, off), (User, on)]).inputs.value);
        assert!(!records(&[(User, off), (Managed, on)]).inputs.value);
        assert!(!records(&[(User, on), (Managed, off)]).inputs.value);
    }

    #[test]
    fn a_value_out_of_bounds_and_a_projects_folder_are_refused_by_name() {
        let text = |kind, text| {
            format!("{:?}", {
                let resolved = resolved(&[(kind, text)]);
                (resolved.refusals, resolved.problems)
            })
        };
        assert!(text(LayerKind::User, "[records]\nrotate_mib = 0\n").contains("records.rotate_mib"));
        assert!(text(LayerKind::Project, "[records]\nfolder = \"x\"\n").contains("records.folder"));
    }
}
