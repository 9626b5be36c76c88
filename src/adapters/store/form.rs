//! Questions and what grants answered, as the JSON that a store keeps. What is read is checked like what a stranger wrote:
//! names, digests and rules are parsed, texts are bounded and made visible again.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::model::caller::{Caller, Principal, SessionId, TenantId};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{CallId, RawToolName, ServerName, ToolRef};
use crate::model::posture::Channel;
use crate::model::role::{LayerRoles, Role};
use crate::model::text::shown;
use crate::model::tool::{Connector, ServerIdentity};
use crate::model::verdict::{
    Ask, AskKey, Fault, FaultCode, MAX_REASON, Reason, Remember, Reviewers, RuleId, Source, StandingAsk,
};
use crate::ports::approval::Kind;
use crate::ports::grants::GrantSubject;
use crate::ports::reviewer::{Agreement, AskedConnector, AskedFile, Question};

/// The most characters of a text of a question that are read back.
const MAX_TEXT: usize = 64 * 1024;
/// The most entries of a list that are read back.
const MAX_LIST: usize = 4096;
/// The most characters of a component's name.
const MAX_NAME: usize = 256;

/// What is read is not what this version writes.
#[derive(Debug)]
pub(super) struct Unreadable(pub(super) String);

type Read<T> = Result<T, Unreadable>;

fn bad(what: &str) -> Unreadable {
    Unreadable(format!("what is kept holds no {what} where one must be"))
}

fn list<A, B>(items: Vec<A>, read: impl Fn(A) -> Read<B>) -> Read<Vec<B>> {
    if items.len() > MAX_LIST {
        return Err(bad("list of a bounded length"));
    }
    items.into_iter().map(read).collect()
}

fn digest(text: &str) -> Read<Digest> {
    Digest::parse(text).map_err(|_| bad("digest"))
}

/// Reads a layer's columns: its kind, and the bytes of its file's path.
pub(super) fn layer_of(kind: &str, origin: &[u8]) -> Option<LayerRef> {
    use LayerKind::{Builtin, Managed, Organisation, Project, Session, System, User};
    let all = [Builtin, Project, Session, User, Organisation, System, Managed];
    let kind = all.into_iter().find(|known| known.as_str() == kind)?;
    if origin.is_empty() {
        return Some(LayerRef::new(kind));
    }
    Some(LayerRef::from_file(kind, PathBuf::from(OsStr::from_bytes(origin))))
}

/// Spells a layer: its kind, and the bytes of its file's path.
pub(super) fn layer_columns(layer: &LayerRef) -> (&'static str, &[u8]) {
    (layer.kind().as_str(), layer.file().map_or(&[][..], |file| file.as_os_str().as_bytes()))
}

#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(deny_unknown_fields)]
struct KeyForm {
    layer: String,
    /// Paths need not be Unicode.
    origin: String,
    component: String,
    digest: Option<String>,
    rule: Option<String>,
}

impl KeyForm {
    fn of(key: &AskKey) -> Self {
        let (layer, origin) = layer_columns(&key.source.layer);
        Self {
            layer: layer.to_owned(),
            origin: STANDARD.encode(origin),
            component: (*key.source.component).to_owned(),
            digest: key.source.digest.map(|digest| digest.to_string()),
            rule: key.rule.as_ref().map(|rule| rule.as_str().to_owned()),
        }
    }

    fn read(self) -> Read<AskKey> {
        let origin = STANDARD.decode(&self.origin).map_err(|_| bad("path"))?;
        if self.component.chars().count() > MAX_NAME {
            return Err(bad("component"));
        }
        let source = Source {
            layer: layer_of(&self.layer, &origin).ok_or_else(|| bad("layer"))?,
            component: self.component.into(),
            digest: self.digest.as_deref().map(digest).transpose()?,
        };
        Ok(AskKey { source, rule: self.rule.as_deref().map(rule).transpose()? })
    }
}

fn rule(text: &str) -> Read<RuleId> {
    RuleId::parse(text).ok_or_else(|| bad("rule"))
}

/// Spells what a grant answered: one text for one set.
pub(super) fn answered_text(answered: &BTreeSet<AskKey>) -> Result<String, Unreadable> {
    let mut keys: Vec<KeyForm> = answered.iter().map(KeyForm::of).collect();
    keys.sort();
    serde_json::to_string(&keys).map_err(|error| Unreadable(error.to_string()))
}

/// Reads what a grant answered.
pub(super) fn answered_of(text: &str) -> Read<BTreeSet<AskKey>> {
    let keys: Vec<KeyForm> = serde_json::from_str(text).map_err(|_| bad("set of asks"))?;
    Ok(list(keys, KeyForm::read)?.into_iter().collect())
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectorForm {
    id: String,
    name: Option<String>,
    account: Option<String>,
    description: Option<String>,
}

/// Spells a connector; none is the empty text.
pub(super) fn connector_text(connector: Option<&Connector>) -> Result<String, Unreadable> {
    let Some(Connector { id, name, account, description }) = connector.cloned() else { return Ok(String::new()) };
    let form = ConnectorForm { id, name, account, description };
    serde_json::to_string(&form).map_err(|error| Unreadable(error.to_string()))
}

/// Reads a connector.
pub(super) fn connector_of(text: &str) -> Read<Option<Connector>> {
    if text.is_empty() {
        return Ok(None);
    }
    let form: ConnectorForm = serde_json::from_str(text).map_err(|_| bad("connector"))?;
    let ConnectorForm { id, name, account, description } = form;
    Ok(Some(Connector { id, name, account, description }))
}

/// Spells a caller's groups.
pub(super) fn groups_text(groups: &[String]) -> Result<String, Unreadable> {
    serde_json::to_string(groups).map_err(|error| Unreadable(error.to_string()))
}

/// Reads a caller's groups.
pub(super) fn groups_of(text: &str) -> Read<Vec<String>> {
    let groups: Vec<String> = serde_json::from_str(text).map_err(|_| bad("list of groups"))?;
    list(groups, Ok)
}

/// Reads a tool's names.
pub(super) fn tool_of(server: &str, tool: &str) -> Read<ToolRef> {
    Ok(ToolRef {
        server: ServerName::parse(server).map_err(|_| bad("server"))?,
        tool: RawToolName::parse(tool).map_err(|_| bad("tool"))?,
    })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgreementForm {
    tenant: String,
    principal: String,
    groups: Vec<String>,
    session: String,
    server: String,
    tool: String,
    identity: String,
    definition: String,
    connector: Option<ConnectorForm>,
    answered: Vec<KeyForm>,
    arguments: String,
    bind_arguments: bool,
    lasts: bool,
}

impl AgreementForm {
    fn of(agreement: &Agreement) -> Self {
        let Agreement { subject, answered, arguments, bind_arguments, lasts } = agreement;
        let connector = subject.connector.clone();
        Self {
            tenant: subject.caller.tenant.as_str().to_owned(),
            principal: subject.caller.principal.as_str().to_owned(),
            groups: subject.caller.groups.clone(),
            session: subject.caller.session.as_str().to_owned(),
            server: subject.tool.server.as_str().to_owned(),
            tool: subject.tool.tool.as_str().to_owned(),
            identity: subject.identity.0.to_string(),
            definition: subject.definition.to_string(),
            connector: connector.map(|Connector { id, name, account, description }| ConnectorForm {
                id,
                name,
                account,
                description,
            }),
            answered: answered.iter().map(KeyForm::of).collect(),
            arguments: arguments.to_string(),
            bind_arguments: *bind_arguments,
            lasts: *lasts,
        }
    }

    fn read(self) -> Read<Agreement> {
        let caller = Caller {
            tenant: TenantId::new(self.tenant),
            principal: Principal::new(self.principal),
            groups: list(self.groups, Ok)?,
            session: SessionId::new(self.session),
        };
        let connector = self.connector.map(|ConnectorForm { id, name, account, description }| Connector {
            id,
            name,
            account,
            description,
        });
        let subject = GrantSubject {
            caller,
            tool: tool_of(&self.server, &self.tool)?,
            identity: ServerIdentity(digest(&self.identity)?),
            definition: digest(&self.definition)?,
            connector,
        };
        Ok(Agreement {
            subject,
            answered: list(self.answered, KeyForm::read)?.into_iter().collect(),
            arguments: digest(&self.arguments)?,
            bind_arguments: self.bind_arguments,
            lasts: self.lasts,
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskForm {
    key: KeyForm,
    rule: Option<String>,
    reason: String,
    remember: Remember,
    bind_arguments: bool,
    reviewers: Reviewers,
    fault: Option<(FaultCode, String)>,
    strict: bool,
}

impl AskForm {
    fn of(asked: &StandingAsk) -> Self {
        let StandingAsk { key, ask, fault, strict } = asked;
        Self {
            key: KeyForm::of(key),
            rule: ask.reason.rule.as_ref().map(|rule| rule.as_str().to_owned()),
            reason: ask.reason.text.clone(),
            remember: ask.remember,
            bind_arguments: ask.bind_arguments,
            reviewers: ask.reviewers,
            fault: fault.as_ref().map(|fault| (fault.code, fault.detail.clone())),
            strict: *strict,
        }
    }

    fn read(self) -> Read<StandingAsk> {
        let rule = self.rule.as_deref().map(rule).transpose()?;
        let reason = Reason { rule, text: shown(&self.reason, MAX_REASON) };
        Ok(StandingAsk {
            key: self.key.read()?,
            ask: Ask {
                reason,
                remember: self.remember,
                bind_arguments: self.bind_arguments,
                reviewers: self.reviewers,
            },
            fault: self.fault.map(|(code, detail)| Fault::new(code, detail)),
            strict: self.strict,
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    argument: String,
    path: String,
    length: u64,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedConnectorForm {
    id: String,
    name: Option<String>,
    description: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RolesForm {
    layer: String,
    origin: String,
    roles: BTreeSet<Role>,
}

impl RolesForm {
    fn of(wanted: &LayerRoles) -> Self {
        let (layer, origin) = layer_columns(&wanted.layer);
        Self { layer: layer.to_owned(), origin: STANDARD.encode(origin), roles: wanted.roles.clone() }
    }

    fn read(self) -> Read<LayerRoles> {
        let origin = STANDARD.decode(&self.origin).map_err(|_| bad("path"))?;
        let layer = layer_of(&self.layer, &origin).ok_or_else(|| bad("layer"))?;
        Ok(LayerRoles { layer, roles: self.roles })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuestionForm {
    id: String,
    call: String,
    kind: Kind,
    server: String,
    tool: String,
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    connector: Option<AskedConnectorForm>,
    arguments: String,
    files: Vec<FileForm>,
    changes: Vec<String>,
    cut: bool,
    agreement: AgreementForm,
    denial: Option<String>,
    asks: Vec<AskForm>,
    reviewers: Reviewers,
    options: Vec<Remember>,
    channels: BTreeSet<Channel>,
    #[serde(default)]
    roles: Vec<RolesForm>,
    deadline_ms: u64,
}

/// Spells a question.
pub(super) fn question_text(question: &Question) -> Result<String, Unreadable> {
    let file = |file: &AskedFile| FileForm {
        argument: file.argument.clone(),
        path: file.path.clone(),
        length: file.length,
        sha256: file.sha256.to_string(),
    };
    let form = QuestionForm {
        id: question.id.clone(),
        call: question.call.to_string(),
        kind: question.kind,
        server: question.tool.server.as_str().to_owned(),
        tool: question.tool.tool.as_str().to_owned(),
        title: question.title.clone(),
        description: question.description.clone(),
        connector: question.connector.clone().map(|AskedConnector { id, name, description }| AskedConnectorForm {
            id,
            name,
            description,
        }),
        arguments: question.arguments.clone(),
        files: question.files.iter().map(file).collect(),
        changes: question.changes.to_vec(),
        cut: question.cut,
        agreement: AgreementForm::of(&question.agreement),
        denial: question.denial.clone(),
        asks: question.asks.iter().map(AskForm::of).collect(),
        reviewers: question.reviewers,
        options: question.options.clone(),
        channels: question.channels.clone(),
        roles: question.roles.iter().map(RolesForm::of).collect(),
        deadline_ms: u64::try_from(question.deadline.as_millis()).unwrap_or(u64::MAX),
    };
    serde_json::to_string(&form).map_err(|error| Unreadable(error.to_string()))
}

/// Reads a question. Its texts have no control characters, whatever the store holds.
pub(super) fn question_of(text: &str) -> Read<Question> {
    let form: QuestionForm = serde_json::from_str(text).map_err(|_| bad("question"))?;
    let visible = |text: String| shown(&text, MAX_TEXT);
    let file = |form: FileForm| {
        let sha256 = digest(&form.sha256)?;
        Ok(AskedFile { argument: visible(form.argument), path: visible(form.path), length: form.length, sha256 })
    };
    if form.options.is_empty() {
        return Err(bad("answer"));
    }
    Ok(Question {
        id: shown(&form.id, MAX_NAME),
        call: CallId::new(&form.call).ok_or_else(|| bad("call"))?,
        kind: form.kind,
        tool: tool_of(&form.server, &form.tool)?,
        title: form.title.map(visible),
        description: form.description.map(visible),
        connector: form.connector.map(|AskedConnectorForm { id, name, description }| AskedConnector {
            id: visible(id),
            name: name.map(visible),
            description: description.map(visible),
        }),
        arguments: visible(form.arguments),
        files: list(form.files, file)?,
        changes: list(form.changes, |line| Ok(visible(line)))?.into(),
        cut: form.cut,
        agreement: Arc::new(form.agreement.read()?),
        denial: form.denial.map(visible),
        asks: list(form.asks, AskForm::read)?,
        reviewers: form.reviewers,
        options: list(form.options, Ok)?,
        channels: form.channels,
        roles: list(form.roles, RolesForm::read)?,
        deadline: Duration::from_millis(form.deadline_ms),
    })
}
