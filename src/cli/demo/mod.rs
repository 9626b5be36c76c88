//! `demo`: the main job on embedded defaults, told as a story that checks itself.
//!
//! Servers inside of this process, the built-in baseline, a managed and an organisation layer with small components; the same
//! host, pipeline and sandbox as everywhere else. Reads no configuration and needs nothing installed. Exits 0 only if every
//! call went as the story says.

mod house;
mod scene;
mod servers;
mod story;

use std::time::Duration;

use super::args::{Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, FAINT, GOOD, STRONG, WARN, field, styled};
use house::House;
use scene::Played;
use story::{STORY, Scene};

/// How long open calls may take at the end; there are none.
const GRACE: Duration = Duration::from_secs(1);

/// Tells the story.
pub(crate) async fn run(global: &Global) -> Result<Exit, Trouble> {
    let house = House::build().await?;
    if global.format == Format::Human {
        render::data(&introduction(render::width()))?;
    }
    let mut wrong = 0;
    for (number, scene) in STORY.iter().enumerate() {
        let played = scene::play(&house, scene).await;
        wrong += usize::from(played.fault.is_some());
        match global.format {
            Format::Human => render::data(&tell(number + 1, scene, &played, render::width()))?,
            Format::Json => render::json(&played.as_json(scene))?,
        }
    }
    house.host.shutdown(GRACE).await;
    if wrong > 0 {
        let what = format!("{wrong} of {} calls did not go as the story says", STORY.len());
        return Err(Trouble::new(Exit::Failed, what));
    }
    if global.format == Format::Human {
        render::data(&format!("\nAll {} calls went as the story says.\n", STORY.len()))?;
    }
    Ok(Exit::Done)
}

fn introduction(width: usize) -> String {
    let mut out = format!("{}\n", styled(STRONG, "Portcullis: thirteen calls and what becomes of them"));
    out.push_str(&field(0, "servers", "files, mail, vault; calendar is down", width));
    out.push_str(&field(
        0,
        "layers",
        "managed (house-rules), organisation (office, broken), builtin (the baseline)",
        width,
    ));
    out
}

fn tell(number: usize, scene: &Scene, played: &Played, width: usize) -> String {
    let mut out = format!("\n{}\n", styled(STRONG, &format!("{number}. {} {}", scene.tool, scene.arguments)));
    out.push_str(&field(2, "", scene.title, width));
    out.push_str(&field(3, "path   ", &played.path, width));
    let style = match played.exit {
        Exit::Done => GOOD,
        Exit::ToolError | Exit::Unavailable | Exit::Usage => WARN,
        Exit::Failed | Exit::Refused => BAD,
    };
    out.push_str(&field(3, "verdict", &verdict(played), width));
    out.push_str(&field(3, "answer ", &format!("{}: {}", styled(style, &played.outcome), played.answer), width));
    out.push_str(&field(3, "took   ", &styled(FAINT, &format!("{:.1} ms", played.milliseconds)), width));
    if let Some(fault) = &played.fault {
        out.push_str(&field(3, "WRONG  ", fault, width));
    }
    out
}

fn verdict(played: &Played) -> String {
    let by = played.by.as_deref().map_or_else(String::new, |by| format!(" by {}", scene::spelled(by)));
    match &played.consent {
        Some(consent) => format!("{}{by}; {consent}", played.verdict),
        None => format!("{}{by}", played.verdict),
    }
}
