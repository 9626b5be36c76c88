//! What a layer leaves to a less trusted one, by name (R2, R3; docs/decisions/0013-delegation.md).
//!
//! Two things, and nothing else. The right to allow: only to the session, and any requirement takes it away again. A key:
//! the delegating layer's *own* value steps aside where the named layer, which must be less trusted and may allow, sets the
//! key. What third layers say is untouched, so delegating never loosens more than the delegating layer itself tightened.

use std::collections::BTreeSet;

use super::requirements_keys::{DelegableKey, LayerName};
use super::stack::Layer;
use crate::model::layer::LayerKind;

/// Gives the right to allow to the session where a more trusted layer, which may allow itself, delegated it.
pub(crate) fn give_right(layers: &mut [Layer]) {
    let gives = |layer: &Layer| {
        let delegate = layer.file.settings.delegate.as_ref();
        layer.may_allow && delegate.and_then(|d| d.may_allow.as_ref()).is_some_and(|names| !names.is_empty())
    };
    let given = layers.iter().any(|layer| layer.definer.kind() > LayerKind::Session && gives(layer));
    // `--managed FILE` adds restrictions: its components are asked, and their allows stay a session's without the right.
    let session = |layer: &&mut Layer| layer.reference.kind() == LayerKind::Session;
    layers.iter_mut().filter(session).for_each(|layer| layer.may_allow |= given);
}

/// Drops the values that a layer left to others, where those set them.
pub(crate) fn step_aside(layers: &mut [Layer]) {
    let says: Vec<_> = layers.iter().map(|layer| (layer.reference.kind(), layer.may_allow, said(layer))).collect();
    for layer in layers {
        let own = layer.reference.kind();
        let delegated = layer.file.settings.delegate.clone().and_then(|delegate| delegate.keys).unwrap_or_default();
        for (key, to) in delegated {
            let takes = |(kind, may_allow, said): &(LayerKind, bool, BTreeSet<DelegableKey>)| {
                let named = to.iter().copied().map(LayerName::value).any(|named| named == *kind);
                *may_allow && *kind < own && named && said.contains(&key)
            };
            if says.iter().any(takes) {
                drop_value(layer, key);
            }
        }
    }
}

fn said(layer: &Layer) -> BTreeSet<DelegableKey> {
    let settings = &layer.file.settings;
    let limits = settings.limits.clone().unwrap_or_default();
    let keys = [
        (settings.approval_policy.is_some(), DelegableKey::ApprovalPolicy),
        (settings.permission_profile.is_some(), DelegableKey::PermissionProfile),
        (limits.ask_timeout_sec.is_some(), DelegableKey::AskTimeout),
        (limits.concurrent_calls.is_some(), DelegableKey::ConcurrentCalls),
    ];
    keys.into_iter().filter_map(|(said, key)| said.then_some(key)).collect()
}

fn drop_value(layer: &mut Layer, key: DelegableKey) {
    let settings = &mut layer.file.settings;
    match key {
        DelegableKey::ApprovalPolicy => settings.approval_policy = None,
        DelegableKey::PermissionProfile => settings.permission_profile = None,
        DelegableKey::AskTimeout => settings.limits.iter_mut().for_each(|limits| limits.ask_timeout_sec = None),
        DelegableKey::ConcurrentCalls => settings.limits.iter_mut().for_each(|limits| limits.concurrent_calls = None),
    }
}
