//! A layer names the roles of whoever may allow what it asks, and nobody else's allow counts (R20).

use std::sync::Arc;

use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::posture::Channel;
use portcullis::model::role::Role;
use portcullis::model::verdict::Remember;
use portcullis::ports::reviewer::{Reply, Roles};

use crate::fakes::bench::{Bench, failed, failure, said};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, ask};

/// The managed layer asks, and wants `security`; with `also` the user's layer asks too and wants `ops`.
fn asking(also: bool) -> Policies {
    let roles = |role: &'static str| Some(Role::of_groups([role]));
    let asks = |rule| Scripted::says(ask(rule, Remember::Session));
    let policies = Policies::open(&["files"])
        .with(LayerKind::Managed, "guard", &asks("think"))
        .posture(LayerKind::Managed, |posture| posture.roles = roles("security"))
        .posture(LayerKind::User, |posture| posture.roles = roles("ops"));
    if also { policies.with(LayerKind::User, "care", &asks("mind")) } else { policies }
}

fn by(roles: &[&str]) -> Reply {
    let roles = Roles::Of(Role::of_groups(roles.iter().copied()));
    Reply::Allowed { remember: Remember::Session, approver: "ann".to_owned(), channel: Channel::Program, roles }
}

#[tokio::test(start_paused = true)]
async fn r20_an_allow_of_somebody_without_the_role_is_none_and_the_refusal_names_layer_rule_and_role() {
    for roles in [&[][..], &["users", "ops"], &["Security"]] {
        let bench = Bench::new(&asking(false)).await;
        let person = Person::replying(&bench.journal, [by(roles)]);
        let finished = bench.write_asking(Arc::clone(&person) as _).await;
        assert_eq!(failed(&finished), (Stage::Approval, Code::NobodyToAsk), "{roles:?}");
        let detail = failure(&finished).detail.clone().unwrap();
        for part in ["managed/guard", "rule think", "`security`", "approvals.roles"] {
            assert!(detail.contains(part), "{part} is not in {detail}");
        }
        assert!(!said(&finished).contains("security"), "the model reads who could allow it");
        assert!(bench.files.handed().is_empty() && bench.purse.kept().is_empty());
        assert_eq!(person.questions()[0].roles.len(), 1, "a layer that does not ask wants nobody");
    }
}

#[tokio::test(start_paused = true)]
async fn r20_where_several_layers_ask_a_role_of_each_is_needed() {
    for (roles, runs) in [(&["security"][..], false), (&["ops"], false), (&["ops", "security", "users"], true)] {
        let bench = Bench::new(&asking(true)).await;
        let person = Person::replying(&bench.journal, [by(roles)]);
        let finished = bench.write_asking(Arc::clone(&person) as _).await;
        assert_eq!(finished.item.failure().is_none(), runs, "{roles:?}");
        let wanted: Vec<String> = person.questions()[0].roles.iter().map(|wanted| wanted.words()).collect();
        assert_eq!(wanted, ["`security`", "`ops`"], "the most trusted layer first");
    }
}

#[tokio::test(start_paused = true)]
async fn r20_refusing_needs_no_role_and_without_roles_everybody_may_allow() {
    let bench = Bench::new(&asking(false)).await;
    let no = Person::replying(&bench.journal, [Reply::Declined]);
    assert_eq!(failed(&bench.write_asking(no).await).1, Code::Declined);
    let asks = Scripted::says(ask("think", Remember::Session));
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::Managed, "guard", &asks)).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert!(bench.write_asking(yes).await.item.failure().is_none());
}
