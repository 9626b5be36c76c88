//! `[requirements]`, `[delegate]` and `[apps]`: what more trusted layers demand, what they leave to others, what stays visible.

use portcullis::config::policy_ref::read_component;
use portcullis::config::{EmbeddedLayer, EveryCall, LayerState, Places, Resolved, SessionSources, load, show};
use portcullis::model::digest::Digest;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{ServerName, ToolRef};
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy, Profile, Reviewer};
use portcullis::model::verdict::OnFailure;
use proptest::prelude::*;
use serde_json::json;

use LayerKind::{Managed, Organisation, Project, Session, System, User};

fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
    load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
}

/// Resolves layers that must all be readable.
fn sound(layers: &[(LayerKind, &str)]) -> Resolved {
    let resolved = resolved(layers);
    assert!(resolved.refusals.is_empty(), "{:?}", resolved.refusals);
    resolved
}

fn enabled(resolved: &Resolved, name: &str) -> Result<(), String> {
    resolved.servers[&ServerName::parse(name).unwrap()].enabled.clone()
}

fn problems(resolved: &Resolved) -> String {
    resolved.problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn said(refusals: &[EveryCall]) -> String {
    refusals.iter().map(|refusal| format!("{refusal}\n")).collect()
}

#[test]
fn only_managed_system_and_organisation_may_have_requirements() {
    for kind in [Managed, System, Organisation] {
        sound(&[(kind, "[requirements]\nprojects = false\n")]);
    }
    for kind in [User, Session] {
        let refused = resolved(&[(kind, "[requirements]\nprojects = false\n")]);
        let text = said(&refused.refusals);
        assert!(text.contains("only the managed, system and organisation layers may have requirements"), "{text}");
    }
    let project = sound(&[(Project, "[requirements]\nprojects = false\n")]);
    assert!(problems(&project).contains("may have requirements"));
    assert!(matches!(project.layers[0].state, LayerState::Broken(_)), "{:?}", project.layers);
}

#[test]
fn requirements_say_who_may_be_chosen_to_answer_asks() {
    let demands = |who: &str| format!("[requirements]\napprovals_reviewers = [{who}]\n");
    let chooses = |who: &str| format!("approvals_reviewer = '{who}'\n[apps.bank]\napprovals_reviewer = '{who}'\n");
    let answers = |requirement: &str, user: &str| {
        let resolved = sound(&[(Managed, requirement), (User, user)]);
        let said = problems(&resolved);
        (resolved.postures.reviewer(None), resolved.postures.reviewer(Some("bank")), said)
    };
    let (person, auto) = (Reviewer::User, Reviewer::AutoReview);
    let (all, bank, said) = answers(&demands("'user'"), &chooses("auto_review"));
    assert_eq!((all, bank), (person, person));
    for key in ["`approvals_reviewer`", "`apps.bank.approvals_reviewer`"] {
        assert!(
            said.contains(key) && said.contains("`requirements.approvals_reviewers` of the managed layer"),
            "{said}"
        );
    }
    let (all, bank, said) = answers(&demands("'auto_review'"), &chooses("user"));
    assert_eq!((all, bank), (auto, auto), "{said}");
    assert_eq!(answers(&demands("'auto_review'"), ""), (auto, auto, String::new()), "what is demanded needs no choice");
    assert_eq!(answers(&demands("'auto_review', 'user'"), &chooses("user")).0, person);
    assert_eq!(answers(&demands("'auto_review', 'user'"), ""), (person, person, String::new()));
    assert!(said_of(&demands("")).contains("names nobody"));
    // R1: a demand is a choice like any other to the layers above it.
    let (above, below) = (demands("'user'"), demands("'auto_review'"));
    let resolved = sound(&[(Managed, &above), (Organisation, &below)]);
    assert_eq!(resolved.postures.reviewer(None), person);
    let said = problems(&resolved);
    assert!(said.contains("`requirements.approvals_reviewers` of the managed layer"), "{said}");
}

fn said_of(managed: &str) -> String {
    said(&resolved(&[(Managed, managed)]).refusals)
}

#[test]
fn r1_requirements_forbid_the_auto_reviewers_of_less_trusted_layers_which_then_allow_nothing() {
    let own = "[reviewer]\ntype = 'sampling'\n";
    let organisation = format!("{own}[requirements]\nreviewers = false\n");
    let resolved = sound(&[(Managed, own), (Organisation, &organisation), (User, own)]);
    let ways: Vec<_> = resolved.reviewers.iter().map(|entry| (entry.layer.kind(), entry.way.is_ok())).collect();
    assert_eq!(ways, [(Managed, true), (Organisation, true), (User, false)], "each stays in its place");
    let said = problems(&resolved);
    assert!(said.contains("refused by `requirements.reviewers` of the organisation layer"), "{said}");
}

#[test]
fn r8_an_unknown_key_in_requirements_fails_the_layer() {
    for text in ["[requirements]\nproject = false\n", "[[requirements.servers]]\nname = 's'\ncomand = ['x']\n"] {
        let refused = resolved(&[(Managed, text)]);
        let text = said(&refused.refusals);
        assert!(text.contains("unknown key") && text.contains("did you mean"), "{text}");
    }
}

#[test]
fn what_a_requirement_cannot_mean_fails_the_layer() {
    let bad = [
        ("[[requirements.servers]]\nname = 's'\n", "exactly one of"),
        ("[[requirements.servers]]\nname = 's'\ncommand = ['a']\nurl = 'https://a.example'\n", "exactly one of"),
        ("[[requirements.servers]]\nname = 's'\ncommand = ['npx', '-y']\n", "no identity"),
        ("[[requirements.servers]]\nname = 's'\ncommand = ['./run']\n", "needs `cwd`"),
        ("[[requirements.servers]]\nname = 's'\ncommand_regex = 'a)|(b'\n", "the regex is none"),
        ("[[requirements.servers]]\nname = 's'\nurl_prefix = 'a.example'\n", "is no URL"),
        ("[requirements.components]\nrequire_signature = true\n", "needs `signers`"),
        ("[requirements.components]\nsigners = { a = 'x' }\n", "the public key is not"),
        ("[requirements.components]\nsha256 = ['x']\n", "not a SHA-256"),
        ("[requirements.limits]\ntime_ms = 0\n", "between 1 and 1000"),
        ("[requirements.apps._default]\nenabled = false\n", "`_default` is none"),
    ];
    for (text, why) in bad {
        let refusals = said(&resolved(&[(Managed, text)]).refusals);
        assert!(refusals.contains(why), "{text}: {refusals}");
    }
}

#[test]
fn l2_l3_r5_a_server_exists_only_by_name_and_exact_command() {
    let required = "[[requirements.servers]]\nname = 'files'\ncommand = ['npx', '-y', '@mcp/files', '.']\n";
    let server = |name: &str, rest: &str| format!("[mcp_servers.{name}]\ncommand = 'npx'\n{rest}");
    let verdict = |name, rest: &str| enabled(&sound(&[(Organisation, required), (User, &server(name, rest))]), name);
    assert_eq!(verdict("files", "args = ['-y', '@mcp/files', '.']\n"), Ok(()));
    let refused = [
        ("other", "args = ['-y', '@mcp/files', '.']\n", "lists no server of this name"),
        ("files", "args = ['-y', '@mcp/files', '.', 'more']\n", "for another server"),
        ("files", "args = ['-y', '@mcp/files', '${WHERE}']\n", "for another server"),
        ("files", "args = ['-y', '@mcp/files', '.']\nenv = { NODE_OPTIONS = '-r ./x' }\n", "for another server"),
        ("files", "args = ['-y', '@mcp/files', '.']\nenv_vars = ['LD_PRELOAD']\n", "for another server"),
    ];
    for (name, rest, why) in refused {
        let text = verdict(name, rest).unwrap_err();
        assert!(text.contains("`requirements.servers` of the organisation layer") && text.contains(why), "{text}");
    }
}

#[test]
fn r5_a_url_is_met_exactly_by_a_prefix_to_a_border_or_by_an_anchored_regex() {
    let verdict = |requirement: &str, url: &str| {
        let required = format!("[[requirements.servers]]\nname = 's'\n{requirement}\n");
        let server = format!("[mcp_servers.s]\nurl = '{url}'\n");
        enabled(&sound(&[(Managed, &required), (User, &server)]), "s").is_ok()
    };
    assert!(verdict("url = 'https://a.example/mcp'", "HTTPS://A.example:443/mcp/"));
    assert!(!verdict("url = 'https://a.example/mcp'", "https://a.example/mcp/x"));
    let prefix = "url_prefix = 'https://a.example/mcp'";
    assert!(verdict(prefix, "https://a.example/mcp/v1?x=1"));
    for url in [
        "https://a.example/mcpx",
        "https://a.example/mcp/../evil",
        "https://a.example/mcp/%2e%2e/evil",
        "https://a.example.evil/mcp",
        "https://a.example/mcp/${X}",
    ] {
        assert!(!verdict(prefix, url), "{url}");
    }
    let regex = r"url_regex = 'https://[a-z]+\.example/mcp|https://b\.test'";
    assert!(verdict(regex, "https://abc.example/mcp"));
    assert!(!verdict(regex, "https://abc.example/mcp/more"));
    assert!(!verdict(regex, "https://b.test.evil"));
    let regex = r"command_regex = 'npx -y @mcp/[a-z]+'";
    assert!(!verdict(regex, "https://abc.example/mcp"));
}

#[test]
fn r1_several_requirements_intersect_and_restrict_less_trusted_layers_alone() {
    let list = |name: &str| format!("[[requirements.servers]]\nname = '{name}'\ncommand = ['a', 'b']\n");
    let server = |name: &str| format!("[mcp_servers.{name}]\ncommand = 'a'\nargs = ['b']\n");
    let both = format!("{}{}", list("x"), list("y"));
    let user = format!("{}{}", server("x"), server("y"));
    let system = server("z");
    let resolved = sound(&[(Managed, &both), (Organisation, &list("x")), (User, &user)]);
    assert!(enabled(&resolved, "x").is_ok());
    assert!(enabled(&resolved, "y").unwrap_err().contains("organisation layer"));
    assert!(enabled(&sound(&[(Organisation, &both), (System, &system)]), "z").is_ok());
    assert!(enabled(&sound(&[(Managed, "[requirements]\nservers = []\n"), (System, &system)]), "z").is_err());
}

#[test]
fn r3_who_may_allow_can_be_taken_from_anyone_and_given_to_nobody_by_a_requirement() {
    let policy = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n";
    let may = |layers: &[(LayerKind, &str)]| {
        sound(layers).policies.iter().map(|p| (p.layer.kind(), p.may_allow)).collect::<Vec<_>>()
    };
    let required = "[requirements]\nmay_allow = ['managed', 'organisation', 'session']\n";
    assert_eq!(may(&[(User, policy), (Session, policy)]), [(User, true), (Session, false)]);
    assert_eq!(may(&[(System, required), (User, policy), (Session, policy)]), [(User, false), (Session, false)]);
    let delegating = format!("{policy}[delegate]\nmay_allow = ['session']\n");
    assert_eq!(may(&[(User, &delegating), (Session, policy)]), [(User, true), (Session, true)]);
    // Who lost the right cannot give it on.
    assert_eq!(may(&[(System, required), (User, &delegating), (Session, policy)]), [(User, false), (Session, false)]);
    let taken = "[requirements]\nmay_allow = ['user']\n";
    assert_eq!(may(&[(Managed, taken), (User, &delegating), (Session, policy)]), [(User, true), (Session, false)]);
}

#[test]
fn r2_a_choice_that_may_not_be_made_counts_as_the_strict_one_that_asks() {
    let required = "[requirements]\napproval_modes = ['auto', 'writes']\napproval_policies = ['on-request']\n\
                    permission_profiles = ['workspace']\n";
    let user = "approval_policy = 'never'\npermission_profile = 'full'\n[mcp_servers.s]\ncommand = 'a'\n\
                default_tools_approval_mode = 'approve'\n[mcp_servers.s.tools.t]\napproval_mode = 'writes'\n\
                [apps.mail]\ndefault_tools_approval_mode = 'approve'\n";
    let resolved = sound(&[(Managed, required), (User, user)]);
    let postures = |tool| resolved.postures.for_tool(&ToolRef::parse(tool).unwrap());
    let (_, posture) = &postures("s/other")[0];
    assert_eq!(
        (posture.policy, posture.profile, posture.mode),
        (ApprovalPolicy::Untrusted, Profile::ReadOnly, ApprovalMode::Prompt)
    );
    assert_eq!(postures("s/t")[0].1.mode, ApprovalMode::Writes);
    assert_eq!(resolved.apps[0].settings["apps"]["mail"]["default_tools_approval_mode"], "prompt");
    let said = problems(&resolved);
    for key in ["approval_policy", "permission_profile", "mcp_servers.s.default_tools_approval_mode", "apps.mail"] {
        assert!(said.contains(key) && said.contains("of the managed layer"), "{said}");
    }
}

#[test]
fn floors_hold_for_failures_and_limits() {
    let required = "[requirements]\non_failure = 'deny'\nlimits = { time_ms = 50, memory_mib = 8 }\n";
    let also = "[requirements.limits]\ntime_ms = 20\n";
    let user = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\non_failure = 'ask'\nlimits = { time_ms = 90 }\n";
    let resolved = sound(&[(Managed, required), (Organisation, also), (User, user)]);
    let policy = &resolved.policies[0];
    assert_eq!(policy.on_failure, OnFailure::Deny);
    assert_eq!((policy.most.time_ms, policy.most.memory_mib), (Some(20), Some(8)));
    let own = sound(&[(User, user)]);
    assert_eq!((own.policies[0].on_failure, own.policies[0].most.time_ms), (OnFailure::Ask, None));
}

#[test]
fn a_component_that_is_not_listed_is_refused_by_its_digest() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.wasm"), "component").unwrap();
    let read = |digest: Digest| {
        let required = format!("[requirements.components]\nsha256 = ['{digest}']\n");
        let user = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n";
        let layer = |kind, text: &str| EmbeddedLayer { kind, text: text.to_owned(), folder: dir.path().to_owned() };
        let embedded = vec![layer(Managed, &required), layer(User, user)];
        let places = Places::nowhere();
        let resolved = load(&places, &SessionSources { embedded, ..SessionSources::default() });
        read_component(&resolved.policies[0], places.user).map_err(|error| error.to_string())
    };
    assert!(read(Digest::of(b"component")).is_ok());
    let text = read(Digest::of(b"other")).unwrap_err();
    assert!(text.contains("`requirements.components.sha256` of the managed layer"), "{text}");
}

#[test]
fn projects_that_are_refused_are_not_read_and_stay_visible() {
    let project = "[mcp_servers.s]\ncommand = 'a'\nnonsense = 1\n";
    let resolved = sound(&[(Organisation, "[requirements]\nprojects = false\n"), (Project, project)]);
    assert!(resolved.servers.is_empty());
    let status = resolved.layers.iter().find(|status| status.layer.kind() == Project).unwrap();
    assert_eq!(status.state, LayerState::Refused("`requirements.projects` of the organisation layer".to_owned()));
    assert_eq!(resolved.problems.len(), 1, "{}", problems(&resolved));
}

#[test]
fn r2_a_delegated_key_is_the_delegating_layers_own_value_and_no_others() {
    let organisation = "approval_policy = 'untrusted'\n[limits]\nask_timeout_sec = 10\n\
                        [delegate.keys]\napproval_policy = ['user']\n'limits.ask_timeout_sec' = ['user', 'session']\n";
    let user = "approval_policy = 'never'\n[limits]\nask_timeout_sec = 60\n";
    let session = "approval_policy = 'on-request'\n[limits]\nask_timeout_sec = 90\n";
    let tool = ToolRef::parse("s/t").unwrap();
    let policies = |layers: &[(LayerKind, &str)]| {
        sound(layers).postures.for_tool(&tool).iter().map(|(l, p)| (l.kind(), p.policy)).collect::<Vec<_>>()
    };
    assert_eq!(policies(&[(Organisation, organisation), (User, user)]), [(User, ApprovalPolicy::Never)]);
    assert_eq!(policies(&[(Organisation, organisation)]), [(Organisation, ApprovalPolicy::Untrusted)]);
    // The session may not allow, and `approval_policy` was not left to it.
    let with_session = policies(&[(Organisation, organisation), (Session, session)]);
    assert!(with_session.contains(&(Organisation, ApprovalPolicy::Untrusted)), "{with_session:?}");
    let timeout = |layers: &[(LayerKind, &str)]| sound(layers).limits.ask_timeout.value.as_secs();
    assert_eq!(timeout(&[(Organisation, organisation), (User, user)]), 60);
    assert_eq!(timeout(&[(Organisation, organisation), (Session, session)]), 10);
    let system = "[limits]\nask_timeout_sec = 5\n";
    assert_eq!(timeout(&[(System, system), (Organisation, organisation), (User, user)]), 5);
}

#[test]
fn who_has_nothing_to_delegate_may_not_say_so() {
    let text = "[delegate]\nmay_allow = ['session']\n";
    assert!(resolved(&[(Session, text)]).refusals[0].text.contains("nothing to leave to others"));
    assert!(problems(&resolved(&[(Project, text)])).contains("nothing to leave to others"));
    assert!(!resolved(&[(User, "[delegate]\nmay_allow = ['project']\n")]).refusals.is_empty());
}

#[test]
fn apps_are_handed_on_for_each_layer_with_what_is_required_of_it() {
    let managed =
        "[requirements.apps.mail]\nenabled = false\n[requirements.apps.mail.tools.send]\napproval_mode = 'auto'\n";
    let organisation = "[requirements.apps.mail]\nenabled = true\n[requirements.apps.mail.tools.send]\n\
                        approval_mode = 'writes'\n[apps._default]\ndestructive_enabled = false\n";
    let user = "[apps.mail]\nenabled = true\n[apps.mail.tools.\"mail/send\"]\napproval_mode = 'approve'\n";
    let resolved = sound(&[(Managed, managed), (Organisation, organisation), (User, user)]);
    let found: Vec<_> = resolved.apps.iter().map(|apps| (apps.layer.kind(), apps.settings.clone())).collect();
    let first = json!({ "mail": { "enabled": false, "tools": { "send": { "approval_mode": "auto" } } } });
    let joined = json!({ "mail": { "enabled": false, "tools": { "send": { "approval_mode": "prompt" } } } });
    let own = json!({ "mail": { "enabled": true, "tools": { "mail/send": { "approval_mode": "approve" } } } });
    let want = [
        (Managed, json!({ "apps": {}, "managed": first })),
        (Organisation, json!({ "apps": { "_default": { "destructive_enabled": false } }, "managed": joined.clone() })),
        (User, json!({ "apps": own, "managed": joined })),
    ];
    assert_eq!(found, want);
}

#[test]
fn r8_an_apps_table_that_cannot_be_read_fails_its_layer() {
    for text in ["[apps.mail]\nenable = false\n", "[apps]\nmail = 1\n", "[apps._default.tools.x]\nenabled = true\n"] {
        assert!(!resolved(&[(User, text)]).refusals.is_empty(), "{text}");
    }
}

#[test]
fn config_show_has_requirements_with_their_origin() {
    let required = "[requirements]\nmay_allow = ['managed']\n[requirements.apps.mail]\nenabled = false\n";
    let shown = show::effective(&sound(&[(Managed, required), (Organisation, "[requirements]\nprojects = false\n")]));
    let found: Vec<_> = shown.iter().filter(|s| s.key.starts_with("requirements")).collect();
    let found: Vec<_> = found.iter().map(|s| (s.key.as_str(), s.value.as_str(), s.layer.kind(), s.line)).collect();
    let want = [
        ("requirements.may_allow", "[\"managed\"]", Managed, Some(2)),
        ("requirements.apps.mail.enabled", "false", Managed, Some(4)),
        ("requirements.projects", "false", Organisation, Some(2)),
    ];
    assert_eq!(found, want);
}

proptest! {
    /// R1, R2: one more requirement never lets a server exist or a layer allow that did not before.
    #[test]
    fn r1_a_requirement_never_loosens(
        first in proptest::collection::vec(0_usize..4, 0..3),
        second in proptest::collection::vec(0_usize..4, 0..3),
        rights in proptest::collection::btree_set(0_usize..4, 0..4),
    ) {
        const NAMES: [&str; 4] = ["w", "x", "y", "z"];
        const KINDS: [&str; 4] = ["managed", "organisation", "user", "session"];
        let servers = |list: &[usize]| {
            let entries = list.iter().map(|i| format!("{{ name = '{}', command = ['a', 'b'] }}", NAMES[*i]));
            format!("[requirements]\nservers = [{}]\n", entries.collect::<Vec<_>>().join(", "))
        };
        let names: Vec<_> = rights.iter().map(|i| format!("'{}'", KINDS[*i])).collect();
        let more = format!("{}may_allow = [{}]\n", servers(&second), names.join(", "));
        let user: String = NAMES.iter().map(|n| format!("[mcp_servers.{n}]\ncommand = 'a'\nargs = ['b']\n")).collect();
        let user = format!("[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n{user}[delegate]\nmay_allow = ['session']\n");
        let session = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n";
        let one = servers(&first);
        let less = resolved(&[(Organisation, &one), (User, &user), (Session, session)]);
        let more = resolved(&[(Managed, &more), (Organisation, &one), (User, &user), (Session, session)]);
        for (name, server) in &more.servers {
            prop_assert!(server.enabled.is_err() || less.servers[name].enabled.is_ok());
        }
        for (one, other) in more.policies.iter().zip(&less.policies) {
            prop_assert!(!one.may_allow || other.may_allow);
        }
    }
}

#[test]
fn a_match_of_no_configured_server_is_a_warning_that_names_the_nearest() {
    let user = "[mcp_servers.files]\ncommand = 'a'\n[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n\
                match = { servers = ['fils', 'f*', 'files'] }\n";
    let resolved = sound(&[(User, user)]);
    let [warning] = resolved.warnings.as_slice() else { panic!("{:?}", resolved.warnings) };
    let text = warning.to_string();
    assert!(text.contains("of the policy `p`") && text.ends_with("(did you mean `files`?)"), "{text}");
    assert_eq!(warning.line, Some(6), "{text}");
    assert!(resolved.problems.is_empty(), "{}", problems(&resolved));
}
