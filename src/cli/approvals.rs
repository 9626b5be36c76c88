//! `approvals`: questions that wait, answered from another terminal, and what is remembered.
//!
//! An allow is a person's word: it needs the controlling terminal with a code that is shown only there, or the approver key
//! (R20). Refusing and forgetting only tighten. The queue decides whether an answer still counts (R21).

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis::adapters::store::sqlite::SqliteGrants;
use portcullis::gateway::question::question_text;
use portcullis::host::approver::{ApproverKey, Shown, VARIABLE};
use portcullis::host::user::{local_caller, local_roles};
use portcullis::host::wire;
use portcullis::model::caller::Caller;
use portcullis::model::role::Role;
use portcullis::model::text::shown;
use portcullis::model::verdict::Remember;
use portcullis::ports::asks::{Answer, AskState, Asks, Decision, Delivery, KeptAsk, NotAnswered};
use portcullis::ports::clock::Clock as _;
use portcullis::ports::grants::{Grant, Grants as _};
use serde_json::json;

use super::approval_args::{self, Approvals, Scope};
use super::args::{Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, STRONG, field, styled};
use super::setup;
use super::terminal::Terminal;

/// The most characters of a name that are shown.
const SHOWN: usize = 256;

/// What helps whoever has not the role that a layer wants.
const OTHER_ROLE: &str = "somebody with that role can allow it: at a terminal of a user in that group, or with an approver key \
                          that carries it";

/// Who allows, and with which roles (R20).
#[derive(Default)]
struct Approver {
    name: String,
    roles: BTreeSet<Role>,
}

/// What the commands work on.
struct Counter {
    asks: Arc<dyn Asks>,
    grants: Arc<SqliteGrants>,
    key: Option<ApproverKey>,
    caller: Caller,
    now_ms: u64,
}

/// Lists, shows, answers or forgets.
pub(crate) fn run(global: &Global, wanted: &Approvals) -> Result<Exit, Trouble> {
    let places = setup::places()?;
    let wire::Stored { grants, asks, .. } =
        wire::open_state(&places).map_err(|error| Trouble::from_error(Exit::Usage, &error))?;
    let clock = portcullis::adapters::clock::SystemClock;
    let now_ms = u64::try_from(clock.now().as_millisecond()).unwrap_or(0);
    let counter = Counter { asks, grants, key: ApproverKey::of(&places), caller: local_caller(), now_ms };
    counter.asks.settle(now_ms).map_err(failed)?;
    match wanted {
        Approvals::List { all } => counter.list(global, *all),
        Approvals::Show { id } => counter.show(global, id),
        Approvals::Allow { id, scope } => counter.allow(global, id, *scope),
        Approvals::Deny { id } => counter.deny(global, id),
        Approvals::Grants => counter.grants(global),
        Approvals::Forget { grant, server, .. } => counter.forget(grant.as_deref(), server.as_deref()),
        Approvals::Key(wanted) => counter.key(wanted),
    }
}

fn failed<E: std::error::Error + 'static>(error: E) -> Trouble {
    Trouble::from_error(Exit::Failed, &error)
}

impl Counter {
    fn list(&self, global: &Global, all: bool) -> Result<Exit, Trouble> {
        let found = self.asks.list(&self.caller.tenant, all, self.now_ms).map_err(failed)?;
        if global.format == Format::Json {
            render::json(&found)?;
            return Ok(Exit::Done);
        }
        let mut out = String::new();
        for ask in &found {
            out.push_str(&self.brief(ask));
        }
        if found.is_empty() {
            out.push_str(if all { "No questions are kept.\n" } else { "No question waits.\n" });
        }
        render::data(&out)?;
        Ok(Exit::Done)
    }

    fn brief(&self, ask: &KeptAsk) -> String {
        let width = render::width();
        let tool = shown(&ask.question.tool.to_string(), SHOWN);
        let mut out = format!("{} {tool}\n", styled(STRONG, &shown(&ask.question.id, SHOWN)));
        out.push_str(&field(2, "arguments", &shown(&ask.question.arguments, SHOWN), width));
        out.push_str(&field(2, "state", &self.state(ask), width));
        out
    }

    fn state(&self, ask: &KeptAsk) -> String {
        match &ask.state {
            AskState::Pending => {
                let left = length(ask.deadline_ms.saturating_sub(self.now_ms));
                let who = if ask.is_awaited(self.now_ms) { "its call waits" } else { "whoever asked has gone" };
                format!("pending for {left} more; {who}; offers {}", words(&self.offered(ask)))
            }
            AskState::Expired => "expired".to_owned(),
            answered @ AskState::Answered { .. } => answer(answered),
        }
    }

    /// What an allow could be. Once nobody waits, only one call is left of it.
    fn offered(&self, ask: &KeptAsk) -> Vec<Remember> {
        let gone = !ask.is_awaited(self.now_ms);
        ask.question.options.iter().copied().filter(|option| !gone || *option == Remember::Never).collect()
    }

    fn show(&self, global: &Global, id: &str) -> Result<Exit, Trouble> {
        let ask = self.find(id)?;
        if global.format == Format::Json {
            render::json(&ask)?;
            return Ok(Exit::Done);
        }
        render::data(&format!(
            "{}\n{}",
            question_text(&ask.question),
            field(0, "State:", &self.state(&ask), render::width())
        ))?;
        Ok(Exit::Done)
    }

    fn allow(&self, global: &Global, id: &str, scope: Scope) -> Result<Exit, Trouble> {
        let ask = self.find(id)?;
        let remember = match scope {
            Scope::Once => Remember::Never,
            Scope::Session => Remember::Session,
            Scope::Always => Remember::Always,
        };
        // Nobody types a code for what cannot count.
        if ask.is_open(self.now_ms) && !self.offered(&ask).contains(&remember) {
            return Err(self.refused(&ask, NotAnswered::NotOffered(self.offered(&ask))));
        }
        if ask.is_open(self.now_ms) {
            let by = self.approver(&ask, scope)?;
            return self.answer(global, &ask, Decision::Allow(remember), by);
        }
        self.answer(global, &ask, Decision::Allow(remember), Approver::default())
    }

    fn deny(&self, global: &Global, id: &str) -> Result<Exit, Trouble> {
        let ask = self.find(id)?;
        let name = format!("`approvals deny` of user {}", self.caller.principal);
        self.answer(global, &ask, Decision::Deny, Approver { name, roles: BTreeSet::new() })
    }

    fn answer(&self, global: &Global, ask: &KeptAsk, decision: Decision, by: Approver) -> Result<Exit, Trouble> {
        let answer = Answer { decision, approver: by.name, roles: by.roles, own: false };
        // The person has taken time to type: the present counts.
        let clock = portcullis::adapters::clock::SystemClock;
        let now_ms = u64::try_from(clock.now().as_millisecond()).unwrap_or(self.now_ms);
        let delivery = self.asks.answer(&ask.question.id, &answer, now_ms).map_err(|error| self.refused(ask, error))?;
        let tool = shown(&ask.question.tool.to_string(), SHOWN);
        let said = match (decision, &delivery) {
            (Decision::Deny, _) => format!("Refused: `{tool}`."),
            (Decision::Allow(_), Delivery::Granted(grant)) => {
                format!("Whoever asked has gone: the same call of `{tool}` runs once without a question ({grant}).")
            }
            (Decision::Allow(_), _) => format!("Allowed: `{tool}`; its call goes on."),
        };
        match global.format {
            Format::Human => render::talk(&said),
            Format::Json => {
                render::json(&json!({ "id": ask.question.id, "decision": decision, "outcome": delivery }))?;
            }
        }
        Ok(Exit::Done)
    }

    fn refused(&self, ask: &KeptAsk, error: NotAnswered) -> Trouble {
        let id = shown(&ask.question.id, SHOWN);
        let what = format!("`{id}` cannot be answered: {error}");
        match error {
            NotAnswered::NotOffered(offered) => {
                Trouble::new(Exit::Usage, what).hint(format!("it offers {}", words(&offered)))
            }
            NotAnswered::Already(state) => Trouble::new(Exit::Unavailable, format!("{what} ({})", answer(&state))),
            NotAnswered::Expired | NotAnswered::TooLate(_) => {
                Trouble::new(Exit::Unavailable, what).hint("let the call be made again")
            }
            NotAnswered::WithoutRole(_) => Trouble::new(Exit::Refused, what).hint(OTHER_ROLE),
            NotAnswered::Unknown => Trouble::new(Exit::Unavailable, what),
            NotAnswered::Failed(_) => Trouble::new(Exit::Failed, what),
        }
    }

    /// Who allows (R20).
    fn approver(&self, ask: &KeptAsk, scope: Scope) -> Result<Approver, Trouble> {
        if let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
            let key = self.key.as_ref().ok_or_else(no_place)?;
            return match key.look_at(&given.to_string_lossy()).map_err(failed)? {
                Shown::Key(roles) => Ok(Approver { name: "approver key".to_owned(), roles }),
                Shown::Other => Err(Trouble::new(Exit::Refused, format!("{VARIABLE} is not the approver key"))),
                Shown::NoKey => Err(Trouble::new(Exit::Refused, "no approver key is set")
                    .hint("run `portcullis approvals key set` in a terminal")),
            };
        }
        // Nobody types a code for what cannot count.
        let roles = local_roles();
        if let Some(why) = ask.question.wants_other_than(&roles) {
            return Err(self.refused(ask, NotAnswered::WithoutRole(why)));
        }
        let scope = match scope {
            Scope::Once => "once",
            Scope::Session => "for the session",
            Scope::Always => "always",
        };
        let text = format!("{}\n\nThis allows it {scope}.", question_text(&ask.question));
        Ok(Approver { name: self.confirmed(&text, "allow this")?, roles })
    }

    /// Has the person at the terminal type a code, and returns who that is.
    fn confirmed(&self, text: &str, what: &str) -> Result<String, Trouble> {
        let mut terminal = Terminal::controlling().ok_or_else(|| {
            Trouble::new(Exit::Refused, "this needs a person at a terminal, and this process has none")
                .hint("run it yourself, in a terminal, or set the approver key")
        })?;
        let broken = |error| Trouble::caused(Exit::Failed, "the terminal cannot be used", &error);
        if !terminal.confirms(text, what).map_err(broken)? {
            return Err(Trouble::new(Exit::Refused, "that was not the code, so nothing was done"));
        }
        Ok(format!("terminal of user {}", self.caller.principal))
    }

    fn find(&self, id: &str) -> Result<KeptAsk, Trouble> {
        let all = self.asks.list(&self.caller.tenant, true, self.now_ms).map_err(failed)?;
        let hint = "`portcullis approvals list --all` shows what is there";
        one(all, id, "ask_", |ask| &ask.question.id).map_err(|what| Trouble::new(Exit::Usage, what).hint(hint))
    }

    fn grants(&self, global: &Global) -> Result<Exit, Trouble> {
        let all = self.grants.all(&self.caller.tenant, self.now_ms).map_err(failed)?;
        if global.format == Format::Json {
            render::json(&all)?;
            return Ok(Exit::Done);
        }
        let (width, mut out) = (render::width(), String::new());
        for grant in &all {
            let tool = shown(&grant.subject.tool.to_string(), SHOWN);
            out.push_str(&format!("{} {tool}\n", styled(STRONG, &grant.id)));
            let bound = if grant.arguments.is_some() { "these very arguments" } else { "any arguments" };
            let left = length(grant.expires_ms.saturating_sub(self.now_ms));
            out.push_str(&field(2, "holds", &format!("{}, for {bound}, {left} more", word(grant.scope)), width));
            out.push_str(&field(2, "by", &shown(&grant.approver, SHOWN), width));
        }
        if all.is_empty() {
            out.push_str("Nothing is remembered.\n");
        }
        render::data(&out)?;
        Ok(Exit::Done)
    }

    fn forget(&self, grant: Option<&str>, server: Option<&str>) -> Result<Exit, Trouble> {
        let all = self.grants.all(&self.caller.tenant, self.now_ms).map_err(failed)?;
        let chosen: Vec<Grant> = match (grant, server) {
            (Some(id), _) => {
                let hint = "`portcullis approvals grants` shows what is remembered";
                let found = one(all, id, "grant_", |grant| &grant.id);
                vec![found.map_err(|what| Trouble::new(Exit::Usage, what).hint(hint))?]
            }
            (None, Some(server)) => {
                all.into_iter().filter(|grant| grant.subject.tool.server.as_str() == server).collect()
            }
            (None, None) => all,
        };
        let mut count = 0;
        for grant in &chosen {
            count += usize::from(self.grants.take(&grant.id).map_err(failed)?);
        }
        render::talk(&format!("Forgotten: {count}. What a session remembers ends with its process."));
        Ok(Exit::Done)
    }

    fn key(&self, wanted: &approval_args::ApproverKey) -> Result<Exit, Trouble> {
        let key = self.key.as_ref().ok_or_else(no_place)?;
        match wanted {
            approval_args::ApproverKey::Set { roles } => {
                let roles: BTreeSet<Role> = roles.iter().cloned().collect();
                let mut text =
                    "Whoever has the approver key can allow calls without a terminal. A key that was set before \
                                will be worth nothing."
                        .to_owned();
                for role in &roles {
                    text.push_str(&format!("\nIt carries the role: {}", shown(role.as_str(), SHOWN)));
                }
                self.confirmed(&text, "make a key")?;
                let made = key.set(&roles).map_err(failed)?;
                // Nowhere but at the terminal: what a program can read of this command is not the key.
                let broken = |error| Trouble::caused(Exit::Failed, "the terminal cannot be used", &error);
                let mut terminal = Terminal::controlling()
                    .ok_or_else(|| Trouble::new(Exit::Failed, "the terminal has gone; run it again"))?;
                terminal.say(&format!("{VARIABLE}={made}\n")).map_err(broken)?;
                render::talk("The key is set, and is not shown again.");
            }
            approval_args::ApproverKey::Remove => {
                let was = key.remove().map_err(failed)?;
                render::talk(if was { "The approver key is removed." } else { "No approver key was set." });
            }
        }
        Ok(Exit::Done)
    }
}

fn no_place() -> Trouble {
    Trouble::new(Exit::Failed, "there is no place to keep the approver key in").hint("set HOME or XDG_STATE_HOME")
}

/// Finds the one whose id begins so.
fn one<T>(all: Vec<T>, given: &str, prefix: &str, id: impl Fn(&T) -> &str) -> Result<T, String> {
    let wanted = if given.starts_with(prefix) { given.to_owned() } else { format!("{prefix}{given}") };
    let mut fits: Vec<T> = all.into_iter().filter(|item| id(item).starts_with(&wanted)).collect();
    if let Some(exact) = fits.iter().position(|item| id(item) == wanted) {
        return Ok(fits.swap_remove(exact));
    }
    let given = shown(given, 64);
    match (fits.pop(), fits.len()) {
        (Some(only), 0) => Ok(only),
        (Some(_), more) => Err(format!("`{given}` begins {} ids", more + 1)),
        (None, _) => Err(format!("there is no `{given}`")),
    }
}

fn answer(state: &AskState) -> String {
    let AskState::Answered { decision, approver, outcome, .. } = state else { return String::new() };
    let approver = shown(approver, SHOWN);
    let what = match decision {
        Decision::Allow(remember) => format!("allowed {} by {approver}", word(*remember)),
        Decision::Deny => format!("refused by {approver}"),
    };
    match outcome {
        Delivery::Waiting => format!("{what}; its call has not taken the answer yet"),
        Delivery::Delivered => what,
        Delivery::Granted(grant) => {
            format!("{what}; too late for its call, remembered for one ({})", shown(grant, SHOWN))
        }
        Delivery::Lost => format!("{what}; too late for its call"),
    }
}

fn word(remember: Remember) -> &'static str {
    match remember {
        Remember::Never => "once",
        Remember::Session => "session",
        Remember::Always => "always",
    }
}

fn words(options: &[Remember]) -> String {
    options.iter().map(|option| word(*option)).collect::<Vec<_>>().join(", ")
}

fn length(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_may_be_shortened_while_one_alone_begins_so() {
        let ids = || vec!["ask_12".to_owned(), "ask_123".to_owned(), "ask_2".to_owned()];
        let found = |given: &str| one(ids(), given, "ask_", |id| id);
        assert_eq!(found("ask_2"), Ok("ask_2".to_owned()));
        assert_eq!(found("2"), Ok("ask_2".to_owned()));
        assert_eq!(found("12"), Ok("ask_12".to_owned()), "the whole id is meant");
        assert_eq!(found("ask_1"), Err("`ask_1` begins 2 ids".to_owned()));
        assert_eq!(found("\u{1b}x"), Err("there is no `\\u{1b}x`".to_owned()));
    }
}
