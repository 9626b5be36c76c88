//! `[files]`: which files calls may name, and where they are uploaded to.
//!
//! Defined whole by the most trusted layer that has it, for it says where a person's files go; every other layer can only
//! switch it off. A project cannot define it at all.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use super::endpoint;
use super::problem::Problem;
use super::stack::Layer;
use super::template::is_variable_name;
use crate::model::here::is_private;
use crate::model::layer::{LayerKind, LayerRef};

/// The most folders.
const MAX_ROOTS: usize = 32;

/// `[files]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesTable {
    /// Where files are uploaded to: `https`, or `http` on this machine. Needs `roots`. The most trusted layer that has these keys says all of them. Not in projects.
    pub upload_url: Option<String>,
    /// The variable that holds the bearer token for uploads. Not in projects.
    pub bearer_token_env_var: Option<String>,
    /// The folders whose files calls may name, 1 to 32. Paths in calls are absolute, or relative to the first. Relative ones are relative to our working directory. Not in projects.
    pub roots: Option<Vec<String>>,
    /// `false` in any layer: no file is uploaded. Default `true`.
    pub enabled: Option<bool>,
}

/// `[files]` as it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Where files are uploaded to.
    pub upload_url: Url,
    /// The variable that holds the token.
    pub bearer_token_env_var: Option<String>,
    /// The folders, absolute if our working directory is known.
    pub roots: Vec<PathBuf>,
    /// The layer that says so.
    pub layer: LayerRef,
}

impl FilesTable {
    fn defines(&self) -> bool {
        self.upload_url.is_some() || self.bearer_token_env_var.is_some() || self.roots.is_some()
    }

    /// Returns what is wrong: key below the table, and message.
    pub(super) fn faults(&self, kind: LayerKind) -> Vec<(String, String)> {
        let fault = |key: &str, message: String| (key.to_owned(), message);
        if !self.defines() {
            return Vec::new();
        }
        if kind == LayerKind::Project {
            return vec![fault("", "a project can only say `enabled = false` here".to_owned())];
        }
        let mut faults = Vec::new();
        match self.upload_url.as_deref().map(endpoint::address) {
            None => faults.push(fault("upload_url", "is missing".to_owned())),
            // The words of a server's address; the key is another one.
            Some(Err(why)) => faults.push(fault("upload_url", why.to_string().replace("its `url`", "it"))),
            Some(Ok(url)) if !is_private(&url) => {
                faults.push(fault("upload_url", "files are not sent over plain `http`; use `https`".to_owned()));
            }
            Some(Ok(_)) => {}
        }
        if self.bearer_token_env_var.as_deref().is_some_and(|name| !is_variable_name(name)) {
            faults.push(fault("bearer_token_env_var", "is no variable name".to_owned()));
        }
        let roots = self.roots.as_deref().unwrap_or_default();
        if !(1..=MAX_ROOTS).contains(&roots.len()) {
            faults.push(fault("roots", format!("must name 1 to {MAX_ROOTS} folders")));
        }
        if roots.iter().any(|root| root.is_empty() || root.contains('\0')) {
            faults.push(fault("roots", "a folder is empty or has a NUL character".to_owned()));
        }
        faults
    }
}

/// Returns what is in force, if anything is.
pub(super) fn resolve(layers: &[Layer], problems: &mut Vec<Problem>) -> Option<Files> {
    let tables = layers.iter().filter_map(|layer| Some((layer, layer.file.settings.files.as_ref()?)));
    let tables: Vec<_> = tables.collect();
    let defining = tables.iter().filter(|(layer, table)| table.defines() && layer.defines);
    let (layer, table) = defining.max_by_key(|(layer, _)| layer.definer.kind()).copied()?;
    for (other, _) in tables.iter().filter(|(other, table)| table.defines() && !std::ptr::eq(*other, layer)) {
        let line = other.file.lines.get("files").copied();
        let message = format!("has no effect: it is defined whole by the {} layer", layer.definer);
        problems.push(Problem::at(&other.reference, line, "files", message));
    }
    if tables.iter().any(|(_, table)| table.enabled == Some(false)) {
        return None;
    }
    Some(Files {
        upload_url: endpoint::address(table.upload_url.as_deref()?).ok()?,
        bearer_token_env_var: table.bearer_token_env_var.clone(),
        roots: table.roots.iter().flatten().map(|root| layer.cwd.join(root)).collect(),
        layer: layer.reference.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Places, Resolved, SessionSources, load};

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
    }

    const USER: &str = "[files]\nupload_url = \"https://a.example/up\"\nroots = [\"/data\", \"below\"]\n";

    #[test]
    fn the_most_trusted_layer_says_where_files_go_and_any_layer_that_none_do() {
        let other = "[files]\nupload_url = \"https://b.example/\"\nroots = [\"/\"]\n";
        let found = resolved(&[(LayerKind::User, USER), (LayerKind::Session, other)]);
        let files = found.files.unwrap();
        assert_eq!(files.upload_url.as_str(), "https://a.example/up");
        assert_eq!((files.layer.kind(), files.roots.len()), (LayerKind::User, 2));
        assert!(found.problems.iter().any(|problem| problem.to_string().contains("has no effect")));
        let off = "[files]\nenabled = false\n";
        for kind in [LayerKind::Session, LayerKind::Project, LayerKind::Managed] {
            let found = resolved(&[(LayerKind::User, USER), (kind, off)]);
            assert_eq!((found.files, found.refusals.len()), (None, 0), "{kind:?}");
        }
        assert_eq!(resolved(&[(LayerKind::User, off)]).files, None);
    }

    #[test]
    fn a_table_that_cannot_work_makes_its_layer_unreadable() {
        let roots = "roots = [\"/data\"]\n";
        for bad in [
            roots.to_owned(),
            "upload_url = \"https://a.example/\"\n".to_owned(),
            "upload_url = \"https://a.example/\"\nroots = []\n".to_owned(),
            format!("upload_url = \"http://a.example/\"\n{roots}"),
            format!("upload_url = \"https://me:hush@a.example/\"\n{roots}"),
            format!("upload_url = \"https://a.example/\"\nbearer_token_env_var = \"A=B\"\n{roots}"),
            format!("upload_url = \"https://a.example/\"\nupload = 1\n{roots}"),
        ] {
            let found = resolved(&[(LayerKind::User, &format!("[files]\n{bad}"))]);
            assert!(found.files.is_none() && !found.refusals.is_empty(), "{bad}");
            assert!(!found.refusals[0].text.contains("hush"));
        }
        let found = resolved(&[(LayerKind::Project, USER)]);
        assert!(found.files.is_none(), "a project says where files go");
    }
}
