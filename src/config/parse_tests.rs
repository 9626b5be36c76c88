use super::*;

fn layer(kind: LayerKind) -> LayerRef {
    LayerRef::from_file(kind, "/x/config.toml".into())
}

fn user(text: &str) -> Result<LayerFile, Vec<Problem>> {
    parse(text, &layer(LayerKind::User))
}

fn only(problems: &[Problem]) -> String {
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].to_string()
}

#[test]
fn an_unknown_key_names_file_line_path_and_what_was_meant() {
    let problems = user("approval_policy = 'never'\n\napproval_polici = 'never'\n").unwrap_err();
    let want = "/x/config.toml:3 (user layer): `approval_polici`: unknown key (did you mean `approval_policy`?)";
    assert_eq!(only(&problems), want);
    let problems = user("[gateway]\nname_limt = 46\n").unwrap_err();
    assert_eq!(
        only(&problems),
        "/x/config.toml:2 (user layer): `gateway.name_limt`: unknown key (did you mean `name_limit`?)"
    );
    let problems = user("[mcp_server.x]\ncommand = 'y'\n").unwrap_err();
    assert_eq!(
        only(&problems),
        "/x/config.toml:1 (user layer): `mcp_server`: unknown key (did you mean `mcp_servers`?)"
    );
}

#[test]
fn r8_an_unknown_key_outside_an_entry_fails_the_layer_and_one_inside_does_not() {
    assert!(user("nonsense = 1\n").is_err());
    let file = user("[mcp_servers.a]\ncommand = 'x'\n[mcp_servers.b]\ncomand = 'x'\n").unwrap();
    assert!(file.servers[&ServerName::parse("a").unwrap()].is_ok());
    let bad = file.servers[&ServerName::parse("b").unwrap()].clone().unwrap_err();
    let want = "/x/config.toml:4 (user layer): `mcp_servers.b.comand`: unknown key (did you mean `command`?)";
    assert_eq!(bad.to_string(), want);
}

#[test]
fn what_is_not_toml_names_its_line() {
    let problems = user("a = 1\nb = = 2\n").unwrap_err();
    assert!(only(&problems).starts_with("/x/config.toml:2 (user layer): is not TOML: "), "{problems:?}");
    assert!(user(&format!("a = {}{}", "[".repeat(10_000), "]".repeat(10_000))).is_err());
}

#[test]
fn a_wrong_value_names_its_line_and_key() {
    let problem = only(&user("\n[limits]\nconcurrent_calls = 'many'\n").unwrap_err());
    assert!(problem.starts_with("/x/config.toml:3 (user layer): `limits.concurrent_calls`: "), "{problem}");
    let problem = only(&user("approval_policy = 'sometimes'\n").unwrap_err());
    assert!(problem.starts_with("/x/config.toml:1 (user layer): `approval_policy`: unknown variant"), "{problem}");
    let problem = only(&user("[gateway]\nname_limit = 3\n").unwrap_err());
    assert_eq!(problem, "/x/config.toml:2 (user layer): `gateway.name_limit`: must lie between 32 and 128");
}

#[test]
fn a_section_that_nothing_enforces_is_refused_by_name() {
    for section in NOT_ENFORCED {
        let problems = user(&format!("[{section}]\nx = 1\n")).unwrap_err();
        let problem = only(&problems);
        assert!(problem.contains(section) && problem.contains("does not enforce"), "{problem}");
    }
}

fn server_fault(body: &str) -> String {
    let file = user(&format!("[mcp_servers.s]\n{body}")).unwrap();
    file.servers[&ServerName::parse("s").unwrap()].clone().unwrap_err().to_string()
}

#[test]
fn l7_keys_of_the_other_transport_are_refused() {
    let want = "/x/config.toml:3 (user layer): `mcp_servers.s.url`: url is not supported for stdio";
    assert_eq!(server_fault("command = 'x'\nurl = 'https://y'\n"), want);
    assert!(server_fault("url = 'https://y'\nargs = []\n").ends_with("args is not supported for http"));
}

#[test]
fn a_bearer_token_in_a_file_is_always_refused_and_never_shown() {
    let problem = server_fault("url = 'https://y'\nbearer_token = 'hunter2'\n");
    assert!(problem.contains("`mcp_servers.s.bearer_token`") && problem.contains("bearer_token_env_var"), "{problem}");
    assert!(!problem.contains("hunter2"));
    assert!(!server_fault("command = 'x'\nenv = 'hunter2'\n").contains("hunter2"));
    assert!(!server_fault("command = 'x'\nenv = { A = ['hunter2'] }\n").contains("hunter2"));
}

#[test]
fn timeouts_are_positive_and_bounded() {
    for value in ["0", "-1", "inf", "nan", "1e9"] {
        let problem = server_fault(&format!("command = 'x'\ntool_timeout_sec = {value}\n"));
        assert!(problem.contains("tool_timeout_sec"), "{problem}");
    }
    let file = user("[mcp_servers.s]\nstartup_timeout_sec = 2.5\nstartup_timeout_ms = 9\n").unwrap();
    let server = file.servers[&ServerName::parse("s").unwrap()].clone().unwrap();
    assert_eq!(server.startup_timeout(), Some(std::time::Duration::from_millis(2500)));
}

#[test]
fn a_server_name_with_another_character_is_reported_and_nothing_else_is_lost() {
    let file = user("[mcp_servers.'a b']\ncommand = 'x'\n[mcp_servers.ok]\ncommand = 'x'\n").unwrap();
    assert!(only(&file.problems).contains("must match"));
    assert_eq!(file.servers.len(), 1);
}

#[test]
fn a_bad_policy_keeps_its_match_and_one_with_a_bad_match_matches_everything() {
    let file = user("[[policies]]\nname = 'p'\ncomponent = 'c.wasm'\non_failur = 'ask'\nmatch = { tools = ['w*'] }\n");
    let file = file.unwrap();
    assert!(only(&file.problems).contains("did you mean `on_failure`?"));
    assert_eq!((file.policies[0].name.as_str(), &file.policies[0].matches.tools), ("p", &Some(vec!["w*".to_owned()])));
    assert!(file.policies[0].entry.is_err());
    let file = user("[[policies]]\nname = 'p'\ncomponent = 'c.wasm'\nmatch = { tool = ['w*'] }\n").unwrap();
    assert!(
        only(&file.problems)
            .contains("`policies[0].match.tool`: of the policy `p`: unknown key (did you mean `tools`?)")
    );
    assert_eq!(file.policies[0].matches, MatchTable::default());
    let file = user("[[policies]]\nname = 'p'\ncomponent = 'c.wasm'\nmatch = { tools = ['[z-'] }\n").unwrap();
    assert_eq!(file.policies[0].matches, MatchTable::default());
    assert!(file.policies[0].entry.is_err());
}

#[test]
fn a_digest_is_required_in_managed_and_organisation() {
    let text = "[[policies]]\nname = 'p'\ncomponent = 'c.wasm'\n";
    for kind in [LayerKind::Managed, LayerKind::Organisation] {
        let file = parse(text, &layer(kind)).unwrap();
        assert!(only(&file.problems).contains("`policies[0].sha256`: of the policy `p`: is required"));
        assert!(file.policies[0].entry.is_err());
    }
    assert!(user(text).unwrap().policies[0].entry.is_ok());
}

#[test]
fn a_component_outside_its_folder_is_refused() {
    for path in ["../c.wasm", "/c.wasm", "a/../../c.wasm", ""] {
        let file = user(&format!("[[policies]]\nname = 'p'\ncomponent = '{path}'\n")).unwrap();
        assert!(file.policies[0].entry.is_err(), "{path}");
    }
}

#[test]
fn two_policies_of_one_name_are_told_apart_and_the_second_is_broken() {
    let text = "[[policies]]\nname = 'p'\ncomponent = 'c.wasm'\n".repeat(2);
    let file = user(&text).unwrap();
    assert_eq!(file.policies.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["p", "p#1"]);
    assert!(file.policies[1].entry.is_err());
}
