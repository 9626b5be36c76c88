//! `call`: one call through the pipeline.

use std::time::Duration;

use portcullis::host::session::SessionCall;
use portcullis::host::user::local_caller;
use portcullis::host::{Host, wire};
use portcullis::model::name::Target;
use portcullis::model::outcome::{Code, Failure, Outcome};
use portcullis::model::text::shown;
use portcullis::pipeline::Finished;
use portcullis::pipeline::emit::views::model::{BodyItem, ModelBody, ModelView, ModelViewOptions};
use serde_json::json;

use super::args::{self, Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, STRONG, styled};
use super::{setup, terminal};

/// How long the call may take to end once it was cancelled.
const GRACE: Duration = Duration::from_secs(2);

/// Makes the call, prints its answer, ends its server.
pub(crate) async fn run(global: &Global, given: args::Target) -> Result<Exit, Trouble> {
    let reference = setup::target(&given.tool)?;
    let arguments = setup::arguments(&given)?;
    let cancel = setup::stop_on_signals()?;
    let setup::Wired { resolved, mut parts, desk, .. } = setup::wire(global).await?;
    setup::only(&mut parts, &reference);
    let telemetry = setup::Sending::start(&resolved, &mut parts);
    let host = Host::start(parts);
    let mut reviewer = terminal::reviewer();
    if resolved.queue.value.unwrap_or(false) {
        reviewer = desk.patient().beside(reviewer);
    }
    let session = host.session(local_caller(), reviewer);
    session.model_takes(resolved.output.input_modalities.value);
    let target = Target::from(reference.clone());
    let finished = session.call(SessionCall { cancel, ..SessionCall::new(target.clone(), arguments) }).await;
    let unavailable = matches!(&finished.item.outcome, Outcome::Failed(failure) if failure.code == Code::NotAvailable);
    let why = unavailable.then(|| setup::not_available(&host, &target));
    host.shutdown(GRACE).await;
    let options = wire::model_view(&resolved, &reference, ModelViewOptions::default());
    let view = ModelView::of(&finished.clean, finished.item.durations.wall, &options).await;
    telemetry.finish().await;
    match global.format {
        Format::Human => print(&finished, &view, why.as_deref())?,
        Format::Json => render::json(&json!({
            "outcome": finished.item.outcome,
            "result": finished.clean.served().value(),
            "model": view,
            "item": finished.item,
            "decision": finished.decision,
            "why": why,
        }))?,
    }
    // A withheld answer: the item has the upstream's own status, but nothing of it is shown.
    let withheld = finished.clean.failure().map(|failure| Exit::of_code(failure.code));
    Ok(withheld.unwrap_or_else(|| Exit::of(&finished.item.outcome)))
}

/// The answer goes to stdout; why there is none goes to stderr.
fn print(finished: &Finished, view: &ModelView, why: Option<&str>) -> Result<(), Trouble> {
    render::data(&body(&view.answer().body))?;
    let Some(failure) = finished.clean.failure().or(finished.item.failure()) else { return Ok(()) };
    render::talk(&format!("{}: {}", styled(BAD, failure.code.as_str()), origin(failure)));
    if let Some(why) = why.or(failure.detail.as_deref()) {
        render::talk(&format!("  because: {}", shown(why, 2000)));
    }
    if let Some(hint) = hint(failure, finished) {
        render::talk(&format!("  {}: {hint}", styled(STRONG, "hint")));
    }
    Ok(())
}

/// The step that the call stopped at, and who stopped it.
fn origin(failure: &Failure) -> String {
    let stage = serde_json::to_value(failure.stage).ok().and_then(|stage| stage.as_str().map(str::to_owned));
    let mut out = format!("stopped at {}", stage.unwrap_or_default());
    if let Some(origin) = &failure.origin {
        out.push_str(&format!(" by {}/{}", origin.layer, shown(&origin.component, 128)));
        if let Some(rule) = &origin.rule {
            out.push_str(&format!(", rule {rule}"));
        }
    }
    out
}

fn hint(failure: &Failure, finished: &Finished) -> Option<String> {
    let tool = shown(&finished.item.call.tool.to_string(), 256);
    match failure.code {
        Code::NobodyToAsk => Some("run it in a terminal, or let a layer allow it".to_owned()),
        Code::Denied | Code::ComponentFailed | Code::NeverAsks => {
            Some(format!("`portcullis explain {tool}` shows what each layer said"))
        }
        Code::NotAvailable => {
            Some("`portcullis tools` lists servers and tools, and what is wrong with them".to_owned())
        }
        Code::Stale => Some("call again: the tool has changed".to_owned()),
        Code::Timeout | Code::Ambiguous => Some("the call may have run; look before you repeat it".to_owned()),
        _ => None,
    }
}

/// The body as text: several lines as they are, media as their kind and size. Other control characters become visible.
fn body(body: &ModelBody) -> String {
    let mut out = match body {
        ModelBody::Text(text) => visible(text),
        ModelBody::Items(items) => items.iter().map(item).collect::<Vec<_>>().join("\n"),
    };
    out.push('\n');
    out
}

fn item(item: &BodyItem) -> String {
    let media =
        |kind: &str, data: &str| format!("[{kind}, {} bytes as a data URL; see it with --format json]", data.len());
    match item {
        BodyItem::InputText { text } => visible(text),
        BodyItem::InputImage { image_url, .. } => media("image", image_url),
        BodyItem::InputAudio { audio_url } => media("audio", audio_url),
        BodyItem::EncryptedContent { encrypted_content } => {
            format!("[encrypted content, {} bytes]", encrypted_content.len())
        }
    }
}

/// A server must not move the cursor of whoever looks.
fn visible(text: &str) -> String {
    text.split('\n').map(|line| shown(line, line.len())).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cannot_move_the_cursor_but_keeps_its_lines() {
        let text = body(&ModelBody::Text("a\n\u{1b}[2Jb".to_owned()));
        assert_eq!(text, "a\n\\u{1b}[2Jb\n");
    }
}
