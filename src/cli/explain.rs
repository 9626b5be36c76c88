//! `explain`: what a call would come to, and why. The same code as `call` up to the barrier (R38).

use std::time::Duration;

use portcullis::host::Host;
use portcullis::host::session::SessionCall;
use portcullis::host::user::local_caller;
use portcullis::model::hook::HookEvent;
use portcullis::model::name::Target;
use portcullis::model::outcome::{Code, Failure};
use portcullis::model::text::shown;
use portcullis::model::verdict::{Folded, Remember};
use portcullis::pipeline::{Explanation, Would};
use portcullis::ports::reviewer::NobodyThere;
use serde_json::{Value, json};

use super::args::{self, Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, GOOD, STRONG, WARN, field, styled};
use super::{decision, setup};

/// Explains the call, and ends its server.
pub(crate) async fn run(global: &Global, given: args::Target) -> Result<Exit, Trouble> {
    let reference = setup::target(&given.tool)?;
    let arguments = setup::arguments(&given)?;
    let stop = setup::stop_on_signals()?;
    let mut parts = setup::wire(global).await?.parts;
    setup::only(&mut parts, &reference);
    let host = Host::start(parts);
    let target = Target::from(reference);
    // Nobody is asked: a dry run has no side effect on a person either.
    let session = host.session(local_caller(), std::sync::Arc::new(NobodyThere));
    let explained = tokio::select! {
        explained = session.explain(SessionCall::new(target.clone(), arguments)) => Some(explained),
        () = stop.cancelled() => None,
    };
    let unavailable = matches!(&explained, Some(Explanation { would: Would::Fail(failure), .. })
        if failure.code == Code::NotAvailable);
    let why = unavailable.then(|| setup::not_available(&host, &target));
    host.shutdown(Duration::ZERO).await;

    let explained = explained.ok_or_else(|| Trouble::new(Exit::Failed, "interrupted"))?;
    match global.format {
        Format::Human => render::data(&human(&target, &explained, why.as_deref()))?,
        Format::Json => render::json(&json!({
            "tool": target.to_string(),
            "would": would(&explained.would),
            "decision": explained.decision,
            "reviewer_could_change": could_change(&explained),
            "grants": explained.grants,
            "hooks": explained.hooks.iter().map(|(event, source)| json!({ "event": event, "source": source })).collect::<Vec<_>>(),
            "changes": explained.changes,
            "why": why,
        }))?,
    }
    Ok(match &explained.would {
        Would::Run { .. } | Would::Ask { .. } => Exit::Done,
        Would::Fail(failure) => Exit::of_code(failure.code),
    })
}

fn human(target: &Target, explained: &Explanation, why: Option<&str>) -> String {
    let width = render::width();
    let headline = match &explained.would {
        Would::Run { .. } => styled(GOOD, "would run"),
        Would::Ask { .. } => styled(WARN, "would be asked about"),
        Would::Fail(failure) => styled(BAD, &format!("would fail: {}", failure.code.as_str())),
    };
    let mut out = format!("{} {headline}\n", styled(STRONG, &shown(&target.to_string(), 256)));
    if let Some(decision) = &explained.decision {
        out.push_str(&decision::describe(decision, width));
    }
    if !explained.changes.is_empty() {
        out.push_str(&format!("{}\n", styled(STRONG, "changed since it was accepted")));
        for line in &*explained.changes {
            out.push_str(&format!("  {line}\n"));
        }
    }
    related(explained, width, &mut out);
    out.push_str(&format!("{}\n", styled(STRONG, "result")));
    for line in result(explained, why) {
        out.push_str(&field(1, "", &line, width));
    }
    out
}

fn result(explained: &Explanation, why: Option<&str>) -> Vec<String> {
    match &explained.would {
        Would::Run { grant: Some(_) } => {
            vec!["The call would be sent: a remembered agreement covers the asks.".to_owned()]
        }
        Would::Run { grant: None } => {
            let lifted = explained.decision.as_ref().and_then(|decision| match &decision.folded {
                Folded::Run { lifted_by } => lifted_by.as_ref(),
                Folded::Ask(_) | Folded::Deny(_) => None,
            });
            vec![match lifted {
                Some(source) => format!("The call would be sent: {} lifted the ask.", decision::source(source)),
                None => "The call would be sent: nothing asks or refuses.".to_owned(),
            }]
        }
        Would::Ask { options, reviewers } => {
            let options: Vec<&str> = options.iter().map(|option| word(*option)).collect();
            let options = options.join(", ");
            vec![
                match (reviewers.auto, reviewers.person) {
                    (true, true) => {
                        format!("The auto reviewer would be asked, then a person, who could allow it {options}.")
                    }
                    (true, false) => "The auto reviewer would be asked.".to_owned(),
                    (false, _) => format!("Somebody would be asked, and could allow it {options}."),
                },
                "A reviewer could change the result: without an agreement the call would be refused.".to_owned(),
            ]
        }
        Would::Fail(failure) => {
            let mut lines = vec![shown(&failure.message, 1000)];
            lines.extend(why.or(failure.detail.as_deref()).map(|why| shown(why, 2000)));
            if Exit::of_code(failure.code) == Exit::Refused {
                lines.push(if could_change(explained) {
                    "No reviewer could change this, but a hook could.".to_owned()
                } else {
                    "No reviewer could change this.".to_owned()
                });
            }
            lines
        }
    }
}

fn word(option: Remember) -> &'static str {
    match option {
        Remember::Never => "once",
        Remember::Session => "for the session",
        Remember::Always => "until something changes",
    }
}

/// Whether somebody's word could change what comes of the call: a person's, the auto reviewer's, or a hook's.
fn could_change(explained: &Explanation) -> bool {
    let has = |event| explained.hooks.iter().any(|(of, _)| *of == event);
    match &explained.would {
        Would::Ask { .. } => true,
        Would::Fail(failure) if matches!(failure.code, Code::NeverAsks | Code::NobodyToAsk) => {
            has(HookEvent::PermissionRequest)
        }
        Would::Run { .. } => has(HookEvent::PreToolUse),
        Would::Fail(_) => false,
    }
}

/// The hooks that are for the tool, and what remembered agreements say about the asks.
fn related(explained: &Explanation, width: usize, out: &mut String) {
    if !explained.hooks.is_empty() {
        out.push_str(&format!("{}\n", styled(STRONG, "hooks that a call would run; none was run now")));
        for (event, source) in &explained.hooks {
            out.push_str(&field(1, event.as_str(), &decision::source(source), width));
        }
    }
    if !explained.grants.is_empty() {
        out.push_str(&format!("{}\n", styled(STRONG, "remembered agreements")));
        for grant in &explained.grants {
            let why = grant.why_not.join("; ");
            let said =
                if why.is_empty() { "covers the asks".to_owned() } else { format!("does not cover them: {why}") };
            let by = shown(&grant.approver, 128);
            out.push_str(&field(1, &grant.id, &format!("{}, by {by}: {said}", word(grant.scope)), width));
        }
    }
}

fn would(would: &Would) -> Value {
    match would {
        Would::Run { grant } => json!({ "run": { "granted": grant.is_some() } }),
        Would::Ask { options, reviewers } => json!({ "ask": { "options": options, "reviewers": reviewers } }),
        Would::Fail(failure) => fail(failure),
    }
}

fn fail(failure: &Failure) -> Value {
    json!({ "fail": failure })
}
