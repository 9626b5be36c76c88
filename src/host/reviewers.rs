//! What the layers' `[reviewer]` tables say -> the auto reviewers of the set.
//!
//! Every table is in the set, whatever is wrong with it: one that cannot work is its fault, which allows nothing (R14).

use std::sync::Arc;

use super::approver;
use super::network::client_builder;
use crate::adapters::review::{CommandReviewer, Endpoint, HttpReviewer, Program, SamplingReviewer, Within};
use crate::config::Resolved;
use crate::config::reviewer::{ReviewerEntry, ReviewerKind, ReviewerWay};
use crate::model::digest::Digest;
use crate::model::revision::PolicySetDigest;
use crate::model::verdict::{Fault, FaultCode, Source};
use crate::ports::approval::PolicySet;
use crate::ports::review::{AutoReviewer, BoundReviewer};

/// Adds the reviewers of all layers to a set, and to its digest. Nothing is started, and no variable is read.
pub(super) fn add(set: &mut PolicySet, resolved: &Resolved) {
    if resolved.reviewers.is_empty() {
        return;
    }
    set.reviewers = resolved.reviewers.iter().map(bound).collect();
    let own = resolved.reviewers.iter().map(|entry| entry.digest.as_bytes().as_slice());
    let parts = std::iter::once(set.digest.0.as_bytes().as_slice()).chain(own);
    set.digest = PolicySetDigest(Digest::of_parts(parts));
}

fn bound(entry: &ReviewerEntry) -> BoundReviewer {
    let source =
        Source { layer: entry.layer.clone(), component: entry.name.as_str().into(), digest: Some(entry.digest) };
    let reviewer = match &entry.way {
        Ok(way) => Ok(reviewer(way, entry)),
        Err(why) => {
            tracing::warn!(reviewer = %source, why, "an auto reviewer cannot be used; it allows nothing");
            Err(Fault::new(FaultCode::Settings, why))
        }
    };
    let asks_own_client = entry.kind == ReviewerKind::Sampling;
    BoundReviewer { source, may_allow: entry.may_allow, asks_own_client, appeal: entry.appeal, reviewer }
}

fn reviewer(way: &ReviewerWay, entry: &ReviewerEntry) -> Arc<dyn AutoReviewer> {
    // A variable that is not Unicode counts as not set.
    let variable = approver::variable;
    let reviewer: Arc<dyn AutoReviewer> = match way {
        ReviewerWay::Sampling => Arc::new(SamplingReviewer),
        ReviewerWay::Command { program, words, folder, key_env, bound } => {
            let program = Program {
                program: program.clone(),
                args: words.iter().skip(1).cloned().collect(),
                folder: folder.clone(),
                key_env: key_env.clone(),
                bound: bound.clone(),
            };
            Arc::new(CommandReviewer::new(program, variable))
        }
        ReviewerWay::Http { url, form, model, key_env } => {
            let endpoint = Endpoint { url: url.clone(), form: *form, model: model.clone(), key_env: key_env.clone() };
            Arc::new(HttpReviewer::new(endpoint, client_builder, variable))
        }
    };
    match entry.timeout {
        Some(limit) => Arc::new(Within::new(reviewer, limit)),
        None => reviewer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::wasm::Engine;
    use crate::config::{Places, SessionSources, load};
    use crate::host::entries::policies;
    use crate::model::evidence::Evidence;
    use crate::model::layer::LayerKind;
    use crate::ports::review::{NoReview, ReviewRequest};

    fn set(layers: &[(LayerKind, &str)]) -> PolicySet {
        let resolved = load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()));
        policies(&resolved, rustix::process::getuid().as_raw(), &Engine::on_demand().unwrap())
    }

    #[test]
    fn r1_every_layers_reviewer_is_in_the_set_and_a_broken_one_as_its_fault() {
        let http = "[reviewer]\ntype = 'http'\nurl = 'https://a.example/'\nmodel = 'm'\nappeal = true\n";
        let sampling = "[reviewer]\ntype = 'sampling'\nname = 'own'\n";
        let broken = "[reviewer]\ntype = 'command'\ncommand = './none'\n";
        let set = set(&[(LayerKind::Managed, http), (LayerKind::User, sampling), (LayerKind::Project, broken)]);
        let told =
            set.reviewers.iter().map(|r| (r.source.to_string(), r.appeal, r.asks_own_client, r.reviewer.is_ok()));
        let wanted = [
            ("managed/reviewer".to_owned(), true, false, true),
            ("user/own".to_owned(), false, true, true),
            ("project/reviewer".to_owned(), false, false, false),
        ];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
        let fault = set.reviewers[2].reviewer.as_ref().err().unwrap();
        assert!(fault.code == FaultCode::Settings && fault.detail.contains("reviewer.command"), "{fault}");
    }

    #[tokio::test]
    async fn r7_the_program_of_any_layers_reviewer_is_compared_with_what_was_read_before_each_start() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("judge.sh");
        let write = |text: &str| {
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        };
        write("echo judged");
        let text = "[reviewer]\ntype = 'command'\ncommand = './judge.sh'\n";
        let read = || load(&Places::nowhere(), &SessionSources::of_texts(&[(LayerKind::User, text)], dir.path()));
        let before = read();
        let reviewer = bound(&before.reviewers[0]).reviewer.unwrap();
        let request = ReviewRequest {
            instructions: "judge".into(),
            action: "{}".into(),
            evidence: Evidence::default(),
            client: None,
        };
        assert_eq!(reviewer.review(&request).await.as_deref(), Ok("judged\n"));
        assert!(before.reviewers[0].files().any(|file| file == program), "a change of it is not looked for");
        write("echo '{\"outcome\":\"allow\"}'");
        let Err(NoReview::Failed(why)) = reviewer.review(&request).await else { panic!("another program was run") };
        assert!(why.contains("judge.sh` changed") && why.contains("load the configuration anew"), "{why}");
        let after = read();
        assert_ne!(after.reviewers[0].digest, before.reviewers[0].digest);
        assert!(bound(&after.reviewers[0]).reviewer.unwrap().review(&request).await.is_ok());
    }

    #[test]
    fn r19_another_reviewer_is_another_set() {
        let with = |model: &str| {
            let text = format!("[reviewer]\ntype = 'http'\nurl = 'https://a.example/'\nmodel = '{model}'\n");
            set(&[(LayerKind::User, &text)]).digest
        };
        assert_eq!(with("m"), with("m"));
        assert_ne!(with("m"), with("n"));
    }
}
