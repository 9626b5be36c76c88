//! `[plugins]`: which registration of a name counts, and what requirements and other layers do to plugins' servers
//! (catalog-dispatch 2, 7.2 and 8.7).

use std::collections::BTreeMap;

use portcullis::config::server::{ResolvedServer, Transport};
use portcullis::config::{Places, Resolved, SessionSources, load, show};
use portcullis::host::overlay::{self, NotAdded};
use portcullis::model::layer::LayerKind;
use portcullis::model::name::ServerName;
use portcullis::model::posture::ApprovalMode;
use proptest::prelude::*;

use LayerKind::{Managed, Organisation, Project, Session, System, User};

use crate::fakes::Journal;
use crate::fakes::house::spec;
use crate::fakes::server::FakeServer;

fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
    load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
}

/// Resolves layers that must all be readable.
fn sound(layers: &[(LayerKind, &str)]) -> Resolved {
    let resolved = resolved(layers);
    assert!(resolved.refusals.is_empty(), "{:?}", resolved.refusals);
    resolved
}

fn name(text: &str) -> ServerName {
    ServerName::parse(text).unwrap()
}

fn server<'a>(resolved: &'a Resolved, text: &str) -> &'a ResolvedServer {
    &resolved.servers[&name(text)]
}

fn enabled(resolved: &Resolved, text: &str) -> Result<(), String> {
    server(resolved, text).enabled.clone()
}

fn command(resolved: &Resolved, text: &str) -> String {
    match &server(resolved, text).transport {
        Transport::Stdio(launch) => launch.command.clone(),
        other => panic!("{other:?}"),
    }
}

fn plugin(id: &str, server: &str, command: &str) -> String {
    format!("[plugins.'{id}'.mcp_servers.{server}]\ncommand = '{command}'\n")
}

fn texts(problems: &[portcullis::config::Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_plugins_server_keeps_its_raw_name_and_has_the_identity_that_it_would_have_elsewhere() {
    let by_plugin = sound(&[(User, &plugin("sample@test", "docs", "run-docs"))]);
    let by_config = sound(&[(User, "[mcp_servers.docs]\ncommand = 'run-docs'\n")]);
    let (one, other) = (server(&by_plugin, "docs"), server(&by_config, "docs"));
    assert_eq!(one.plugin.as_deref(), Some("sample@test"));
    assert_eq!(one.enabled, Ok(()));
    assert_eq!(one.identity, other.identity);
    assert_ne!(one.digest, other.digest, "a prepared call is stale when its plugin changes");
}

#[test]
fn l8_config_wins_over_plugins_of_its_layer_and_the_plugins_dispute_is_one_warning_that_names_both() {
    let text = format!(
        "[mcp_servers.docs]\ncommand = 'config'\n{}{}",
        plugin("b", "docs", "from-b"),
        plugin("a", "docs", "from-a")
    );
    let resolved = sound(&[(User, &text)]);
    assert_eq!(command(&resolved, "docs"), "config");
    assert_eq!(server(&resolved, "docs").plugin, None);
    let want = "user layer:3: `plugins.b.mcp_servers.docs`: the plugin `b` of the user layer has no say: the plugin `a` of \
                the user layer registers this name first";
    assert_eq!(texts(&resolved.warnings), [want]);
    assert!(resolved.problems.is_empty(), "{:?}", resolved.problems);
}

#[test]
fn l8_of_two_plugins_the_earlier_id_wins_and_the_more_trusted_layer_before_it() {
    let both = format!("{}{}", plugin("b", "docs", "from-b"), plugin("a", "docs", "from-a"));
    assert_eq!(command(&sound(&[(User, &both)]), "docs"), "from-a");
    let (a, b) = (plugin("a", "docs", "from-a"), plugin("b", "docs", "from-b"));
    assert_eq!(command(&sound(&[(Organisation, &b), (User, &a)]), "docs"), "from-b");
}

#[test]
fn r4_a_less_trusted_layer_never_replaces_a_plugins_server_and_is_told_so() {
    let own = "[mcp_servers.docs]\ncommand = 'evil'\n";
    let docs = plugin("p", "docs", "docs");
    let resolved = sound(&[(Managed, &docs), (User, own)]);
    assert_eq!((command(&resolved, "docs").as_str(), server(&resolved, "docs").plugin.as_deref()), ("docs", Some("p")));
    let said = texts(&resolved.problems);
    assert!(said[0].contains("`mcp_servers.docs.command`: has no effect") && said[0].contains("managed"), "{said:?}");
    let same = sound(&[(Managed, &docs), (User, &plugin("p", "docs", "evil"))]);
    assert_eq!(command(&same, "docs"), "docs");
    assert!(texts(&same.problems)[0].contains("`plugins.p.mcp_servers.docs.command`: has no effect"));
    // The other way round nobody is replaced either.
    assert_eq!(command(&sound(&[(Managed, own), (User, &docs)]), "docs"), "evil");
}

#[test]
fn r2_any_layer_tightens_a_plugins_server_by_its_name_or_by_its_plugin() {
    let docs = plugin("p", "docs", "docs");
    for above in ["mcp_servers", "plugins.p.mcp_servers"] {
        for (kind, other) in [(Managed, User), (User, Organisation)] {
            let tighter = format!("[{above}.docs]\ntool_timeout_sec = 2\ndisabled_tools = ['write']\n");
            let resolved = sound(&[(kind, &tighter), (other, &docs)]);
            let own = server(&resolved, "docs");
            assert_eq!(own.tool_timeout.as_secs(), 2, "{above} {kind:?}");
            assert_eq!(own.filter.disabled.len(), 1, "{above} {kind:?}");
            let off = sound(&[(kind, &format!("[{above}.docs]\nenabled = false\n")), (other, &docs)]);
            assert!(enabled(&off, "docs").unwrap_err().starts_with("disabled by the"), "{above} {kind:?}");
        }
    }
    let other = sound(&[(User, &docs), (Session, "[plugins.other.mcp_servers.docs]\nenabled = false\n")]);
    assert_eq!(enabled(&other, "docs"), Ok(()), "another plugin's table is about another server");
}

#[test]
fn l9_a_disabled_winner_keeps_its_name_and_nothing_weaker_takes_its_place() {
    let config = format!("[mcp_servers.docs]\ncommand = 'config'\nenabled = false\n{}", plugin("p", "docs", "docs"));
    let resolved = sound(&[(User, &config)]);
    assert_eq!(command(&resolved, "docs"), "config");
    assert!(enabled(&resolved, "docs").is_err());
    let first = format!("{}enabled = false\n{}", plugin("a", "docs", "from-a"), plugin("b", "docs", "from-b"));
    let resolved = sound(&[(User, &first)]);
    assert_eq!(command(&resolved, "docs"), "from-a");
    assert!(enabled(&resolved, "docs").is_err());
}

#[test]
fn a_plugin_that_its_own_or_a_more_trusted_layer_switches_off_has_no_servers_and_says_who_did_it() {
    let off = "[plugins.a]\nenabled = false\n";
    let (a, b) = (plugin("a", "docs", "from-a"), plugin("b", "docs", "from-b"));
    let alone = sound(&[(Managed, off), (User, &a)]);
    let want = "disabled by the managed layer, which switches the plugin `a` off";
    assert_eq!(enabled(&alone, "docs"), Err(want.to_owned()));
    assert!(server(&alone, "docs").is_switched_off());
    // Its name is free for others.
    for layers in [
        [(Managed, off.to_owned()), (User, format!("{a}{b}"))],
        [(System, String::new()), (User, format!("{a}{b}{off}"))],
    ] {
        let layers: Vec<(LayerKind, &str)> = layers.iter().map(|(kind, text)| (*kind, text.as_str())).collect();
        let resolved = sound(&layers);
        assert_eq!((command(&resolved, "docs").as_str(), enabled(&resolved, "docs")), ("from-b", Ok(())));
        assert!(resolved.warnings.is_empty(), "{:?}", resolved.warnings);
    }
}

#[test]
fn r4_a_less_trusted_layer_switches_a_plugin_off_but_does_not_get_its_names() {
    let mine = "[plugins.a]\nenabled = false\n[mcp_servers.docs]\ncommand = 'mine'\n";
    let resolved = sound(&[(Organisation, &plugin("a", "docs", "from-a")), (User, mine)]);
    assert_eq!(command(&resolved, "docs"), "from-a");
    assert!(enabled(&resolved, "docs").unwrap_err().contains("user layer, which switches the plugin `a` off"));
}

#[test]
fn r8_a_mistake_in_a_plugin_disables_its_servers_and_one_in_a_servers_table_that_server() {
    let bad = format!("[plugins.a]\nenabeld = false\n{}{}", plugin("a", "docs", "x"), plugin("b", "other", "y"));
    let resolved = sound(&[(User, &bad)]);
    let why = enabled(&resolved, "docs").unwrap_err();
    assert!(why.contains("user layer:2: `plugins.a.enabeld`: unknown key (did you mean `enabled`?)"), "{why}");
    assert_eq!(enabled(&resolved, "other"), Ok(()));
    // What cannot be read is no room for others.
    let mine = "[mcp_servers.docs]\ncommand = 'mine'\n";
    assert!(enabled(&sound(&[(Managed, &bad), (User, mine)]), "docs").is_err());

    let bad = "[plugins.a.mcp_servers.docs]\ncommnad = 'x'\n[plugins.a.mcp_servers.more]\ncommand = 'x'\n";
    let resolved = sound(&[(User, bad)]);
    let why = enabled(&resolved, "docs").unwrap_err();
    assert!(why.contains("user layer:2: `plugins.a.mcp_servers.docs.commnad`: unknown key"), "{why}");
    assert_eq!(enabled(&resolved, "more"), Ok(()));
    assert!(enabled(&sound(&[(Managed, bad), (User, mine)]), "docs").is_err());
}

#[test]
fn r8_an_id_that_is_none_fails_the_layer() {
    for bad in ["[plugins.'']\nenabled = false\n", "[plugins.\"a\\u0007\"]\nenabled = false\n", "plugins = 1\n"] {
        assert!(!resolved(&[(User, bad)]).refusals.is_empty(), "{bad}");
    }
}

#[test]
fn a_plugins_modes_are_those_of_its_server_and_of_no_other() {
    let docs = format!("{}default_tools_approval_mode = 'prompt'\n", plugin("p", "docs", "docs"));
    let modes = |resolved: &Resolved| {
        let layers = resolved.postures.layers();
        layers.iter().find_map(|layer| layer.modes.get(&name("docs"))?.default)
    };
    assert_eq!(modes(&sound(&[(User, &docs)])), Some(ApprovalMode::Prompt));
    let loses = format!("[mcp_servers.docs]\ncommand = 'x'\n{docs}");
    assert_eq!(modes(&sound(&[(User, &loses)])), None);
    // Of two within one layer the stricter one counts.
    let both = format!("{docs}[mcp_servers.docs]\ndefault_tools_approval_mode = 'approve'\n");
    assert_eq!(modes(&sound(&[(User, &both)])), Some(ApprovalMode::Prompt));
    let required = "[requirements]\napproval_modes = ['prompt']\n";
    let approve = docs.replace("prompt", "approve");
    let restricted = sound(&[(Managed, required), (User, &approve)]);
    assert_eq!(modes(&restricted), Some(ApprovalMode::Prompt));
    assert!(texts(&restricted.problems)[0].contains("`plugins.p.mcp_servers.docs.default_tools_approval_mode`"));
}

#[test]
fn l1_no_list_permits_all_and_an_empty_one_none_of_plugins_either() {
    let both = format!("[mcp_servers.own]\ncommand = 'x'\n{}", plugin("a", "docs", "y"));
    let without = sound(&[(Managed, "[requirements]\nprojects = true\n"), (User, &both)]);
    assert!(enabled(&without, "own").is_ok() && enabled(&without, "docs").is_ok());
    let listed = "[requirements]\nservers = []\n[[requirements.plugins.a.servers]]\ncommand = ['y']\n";
    for empty in ["[requirements]\nservers = []\n", listed] {
        let resolved = sound(&[(Managed, empty), (User, &both)]);
        for server in ["own", "docs"] {
            let why = enabled(&resolved, server).unwrap_err();
            assert!(why.contains("`requirements.servers` of the managed layer"), "{why}");
        }
    }
}

#[test]
fn l2_l3_l5_a_plugins_server_exists_only_as_its_plugin_is_permitted_it_once_any_plugin_is_listed() {
    let required = "[[requirements.plugins.a.servers]]\nname = 'docs'\ncommand = ['docs']\n";
    let verdict = |text: &str, server: &str| enabled(&sound(&[(Organisation, required), (User, text)]), server);
    assert_eq!(verdict(&plugin("a", "docs", "docs"), "docs"), Ok(()));
    let refused = [
        (
            plugin("a", "docs", "other"),
            "docs",
            "`requirements.plugins.a.servers` of the organisation layer, which lists this name for another",
        ),
        (
            plugin("a", "more", "docs"),
            "more",
            "`requirements.plugins.a.servers` of the organisation layer, which lists no server of this name",
        ),
        (
            plugin("b", "docs", "docs"),
            "docs",
            "`requirements.plugins.b.servers` of the organisation layer, which lists no server of this name",
        ),
    ];
    for (text, server, why) in refused {
        let said = verdict(&text, server).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(verdict("[mcp_servers.own]\ncommand = 'x'\n", "own"), Ok(()), "no other server is touched");
}

#[test]
fn page_5_what_may_exist_is_not_evaded_by_writing_it_down_as_a_plugins() {
    let required = "[[requirements.servers]]\nname = 'docs'\ncommand = ['docs']\n";
    assert!(enabled(&sound(&[(Managed, required), (User, &plugin("a", "evil", "evil"))]), "evil").is_err());
    assert_eq!(enabled(&sound(&[(Managed, required), (User, &plugin("a", "docs", "docs"))]), "docs"), Ok(()));
}

#[test]
fn r1_lists_of_plugins_in_several_layers_intersect_and_a_switch_off_wins() {
    let list = |name: &str| format!("[[requirements.plugins.a.servers]]\nname = '{name}'\ncommand = ['x']\n");
    let both = format!("{}{}", list("one"), list("two"));
    let user = format!("{}{}", plugin("a", "one", "x"), plugin("a", "two", "x"));
    let resolved = sound(&[(Managed, &both), (Organisation, &list("one")), (User, &user)]);
    assert_eq!(enabled(&resolved, "one"), Ok(()));
    assert!(enabled(&resolved, "two").unwrap_err().contains("organisation layer"));
    let off = "[requirements.plugins.a]\nenabled = false\n";
    let resolved = sound(&[(Managed, &both), (Organisation, off), (User, &user)]);
    assert_eq!(
        enabled(&resolved, "one"),
        Err("refused by `requirements.plugins.a.enabled` of the organisation layer".to_owned())
    );
    let own = format!("{off}{}", plugin("a", "one", "x"));
    assert_eq!(enabled(&sound(&[(Organisation, &own)]), "one"), Ok(()), "a layer does not restrict itself");
}

#[test]
fn issue_35627_a_rule_without_a_name_permits_a_server_under_any_name() {
    let required = "[[requirements.servers]]\nurl = 'https://a.example/mcp'\n[[requirements.servers]]\nname = 'x'\ncommand = ['x']\n";
    let verdict = |name: &str, body: &str| {
        enabled(&sound(&[(Managed, required), (User, &format!("[mcp_servers.{name}]\n{body}\n"))]), name)
    };
    assert_eq!(verdict("any", "url = 'https://a.example/mcp'"), Ok(()));
    assert_eq!(verdict("x", "url = 'https://a.example/mcp'"), Ok(()));
    assert!(verdict("any", "url = 'https://b.example/mcp'").unwrap_err().contains("lists no such server"));
    assert!(verdict("x", "url = 'https://b.example/mcp'").unwrap_err().contains("this name for another server"));
}

#[test]
fn l4_each_argument_is_matched_in_its_place_and_none_may_be_left_over() {
    let required = "[[requirements.servers]]\nname = 's'\nexecutable = 'npx'\n\
        args = [{ exact = '-y' }, { prefix = '@mcp/files' }, { regex = 'v[0-9]+' }]\n";
    let verdict = |args: &str| {
        let server = format!("[mcp_servers.s]\ncommand = 'npx'\nargs = [{args}]\n");
        enabled(&sound(&[(Managed, required), (User, &server)]), "s").is_ok()
    };
    assert!(verdict("'-y', '@mcp/files', 'v1'"));
    assert!(verdict("'-y', '@mcp/files/deep', 'v12'"));
    for bad in [
        "'-y', '@mcp/files', 'v1', 'more'",
        "'-y', '@mcp/files'",
        "'@mcp/files', '-y', 'v1'",
        "'-y', '@mcp/files-evil', 'v1'",
        "'-y', '@mcp/files/../evil', 'v1'",
        "'-y', '@mcp/files', 'v1x'",
        "'-y', '@mcp/files', '${WHAT}'",
    ] {
        assert!(!verdict(bad), "{bad}");
    }
}

#[test]
fn l6_what_no_requirement_can_mean_fails_the_layer_with_server_and_line() {
    let bad = [
        (
            "[[requirements.servers]]\nname = 's'\nurl_regex = '('\n",
            "servers[0]`: of the server `s`: the regex is none",
        ),
        (
            "[[requirements.plugins.a.servers]]\nname = 's'\nurl_regex = '('\n",
            "managed layer:1: `requirements.plugins.a.servers[0]`",
        ),
        ("[[requirements.servers]]\nexecutable = 'a'\nargs = [{ regex = '(' }]\n", "the regex is none"),
        (
            "[[requirements.servers]]\nexecutable = 'a'\nargs = [{ exact = 'a', prefix = 'a' }]\n",
            "exactly one of exact, prefix",
        ),
        ("[[requirements.servers]]\nexecutable = 'a'\nargs = [{ prefix = '/' }]\n", "needs a text before"),
        ("[[requirements.servers]]\nexecutable = 'npx'\nargs = [{ exact = '-y' }]\n", "alone is no identity"),
        ("[[requirements.servers]]\ncommand = ['a']\nargs = []\n", "those of an `executable`"),
        ("[requirements.plugins.'']\nenabled = false\n", "an id has"),
        ("[requirements.plugins.a]\nserver = []\n", "unknown key"),
    ];
    for (text, why) in bad {
        let refusals: String = resolved(&[(Managed, text)]).refusals.iter().map(|one| format!("{one}\n")).collect();
        assert!(refusals.contains(why), "{text}: {refusals}");
    }
}

#[test]
fn l8_l9_what_the_embedder_adds_wins_unless_the_name_is_disabled_or_a_more_trusted_layers() {
    let text = format!(
        "[mcp_servers.docs]\ncommand = 'config'\n[mcp_servers.off]\ncommand = 'x'\nenabled = false\nrequired = true\n{}",
        plugin("a", "docs", "from-a")
    );
    let resolved = sound(&[(Organisation, &text)]);
    let fake = FakeServer::new("docs", &Journal::default(), Vec::new());
    let (mut servers, disabled) = (BTreeMap::new(), BTreeMap::new());
    let mut add = |kind, text: &str| overlay::add(&mut servers, &disabled, &resolved, kind, (name(text), spec(&fake)));
    assert_eq!(add(Organisation, "docs"), Ok(()));
    assert_eq!(add(Session, "new"), Ok(()));
    assert!(matches!(add(User, "docs"), Err(NotAdded::Defined(_, layer)) if layer.kind() == Organisation));
    assert!(matches!(add(Managed, "off"), Err(NotAdded::Vetoed(_, why)) if why.contains("organisation layer")));
    assert_eq!(servers.len(), 2);
}

#[test]
fn r4_a_plugin_is_called_what_the_most_trusted_layer_says_that_may_and_no_less_trusted_one_has_a_say() {
    let called = |name: &str| format!("[plugins.a]\ndisplay_name = '{name}'\n");
    let (own, brings) = (called("Own"), plugin("a", "docs", "x"));
    let named = |layers: &[(LayerKind, &str)]| server(&sound(layers), "docs").plugin_name.clone();
    assert_eq!(named(&[(User, &brings)]), None);
    assert_eq!(named(&[(User, &brings), (Project, &own)]), None);
    let user = format!("{own}{brings}");
    assert_eq!(named(&[(User, &user), (Project, &called("Nearer"))]).as_deref(), Some("Own"));
    assert_eq!(named(&[(User, &user), (Managed, &called("Managed"))]).as_deref(), Some("Managed"));
}

#[test]
fn config_show_names_plugins_their_servers_lines_and_who_disabled_what() {
    let modes = "default_tools_approval_mode = 'prompt'\n";
    let user = format!("[plugins.a]\ndisplay_name = 'Docs'\n{}{modes}", plugin("a", "docs", "x"));
    let shown = show::effective(&sound(&[(Managed, "[plugins.a]\nenabled = false\n"), (User, &user)]));
    let of = |key: &str| {
        let one = shown.iter().find(|one| one.key == key).unwrap_or_else(|| panic!("{key}: {shown:?}"));
        (one.value.clone(), one.layer.kind(), one.line)
    };
    assert_eq!(of("mcp_servers.docs.plugin"), ("\"a\"".to_owned(), User, Some(3)));
    assert_eq!(of("mcp_servers.docs.command"), ("\"x\"".to_owned(), User, Some(4)));
    assert_eq!(of("mcp_servers.docs.default_tools_approval_mode"), ("\"prompt\"".to_owned(), User, Some(5)));
    assert_eq!(of("plugins.a.display_name"), ("\"Docs\"".to_owned(), User, Some(2)));
    assert_eq!(of("plugins.a.enabled"), ("false".to_owned(), Managed, Some(2)));
    let (why, layer, _) = of("mcp_servers.docs.disabled");
    assert!(why.contains("managed layer, which switches the plugin `a` off"), "{why}");
    assert_eq!(layer, Managed);

    let required = "[requirements]\nservers = []\n";
    let shown = show::effective(&sound(&[(Managed, required), (User, "[mcp_servers.s]\ncommand = 'x'\n")]));
    let enabled = shown.iter().find(|one| one.key == "mcp_servers.s.enabled").unwrap();
    assert_eq!((enabled.value.as_str(), enabled.layer.kind()), ("false", Managed));
}

#[test]
fn an_untrusted_or_embedded_projects_plugin_may_not_relax_hints() {
    let resolved = sound(&[(Project, &plugin("a", "docs", "x"))]);
    assert!(resolved.servers.get(&name("docs")).is_none_or(|server| !server.may_relax));
}

proptest! {
    /// R1, R4: one more plugin in a less trusted layer never changes what a more trusted layer's server is, nor enables one.
    #[test]
    fn r4_no_plugin_of_a_less_trusted_layer_changes_a_more_trusted_ones_server(
        ids in prop::collection::btree_set("[a-c]", 1..3),
        off in any::<bool>(),
        by_plugin in any::<bool>(),
        switch in any::<bool>(),
    ) {
        let trusted = if by_plugin {
            format!("{}enabled = {}\n", plugin("b", "docs", "trusted"), !off)
        } else {
            format!("[mcp_servers.docs]\ncommand = 'trusted'\nenabled = {}\n", !off)
        };
        let mut less = String::new();
        for id in &ids {
            less.push_str(&plugin(id, "docs", "evil"));
            less.push_str(&format!("enabled = true\n[plugins.{id}]\nenabled = {switch}\n"));
        }
        let resolved = sound(&[(Organisation, &trusted), (User, &less)]);
        prop_assert_eq!(command(&resolved, "docs"), "trusted");
        prop_assert!(!off || enabled(&resolved, "docs").is_err());
    }
}
