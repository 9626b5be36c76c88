//! Which parts of a schema are applied to which values, without judging any: how deep that goes, and how often.
//!
//! A schema may refer to itself as long as each way round goes into the value that is checked: a tree of nodes has an end,
//! whatever its schema says. Where it does not go in, nothing is said by it, and it is refused. How deep the library recurses
//! and how much it looks at is counted here before it is asked, on the very value: a schema that says twice of each member what
//! it says of the whole is looked at twice as often with every level.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// The longest way from the top of a schema to a part that is applied, in parts. Each costs stack in the library.
const MAX_HEIGHT: usize = 256;
/// The most parts that are applied to one value and all that is in it, each counted once for each value.
const MAX_STEPS: usize = 1 << 20;

/// How a schema refers to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// It does not: it ends by itself.
    Finite,
    /// It does, and each way round goes into the value.
    Recursive,
}

/// What applying a schema to one value comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// The longest way from the top to a part that is applied.
    pub(super) height: usize,
    /// How often parts are applied, if nothing is remembered.
    pub(super) times: u64,
}

/// A value is too deep or too large for a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooHeavy;

/// What a part is applied to.
#[derive(Clone, Copy)]
enum Onto<'s> {
    /// The same value.
    Same,
    /// The member of an object with this name.
    Member(&'s str),
    /// Any member of an object.
    Members,
    /// The name of any member.
    Names,
    /// Any item of an array.
    Items,
}

/// Calls `each` with every part that a part of a schema applies, and with what to. What no dialect reads is none; a part that
/// only another dialect applies is no harm.
fn parts<'s>(root: &'s Value, of: &'s Map<String, Value>, mut each: impl FnMut(Onto<'s>, &'s Value)) {
    for (key, member) in of {
        match (key.as_str(), member) {
            ("$ref", Value::String(reference)) => {
                if let Some(target) = target(root, reference) {
                    each(Onto::Same, target);
                }
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.iter().for_each(|one| each(Onto::Same, one)),
            ("not" | "if" | "then" | "else", one) => each(Onto::Same, one),
            ("dependentSchemas" | "dependencies", Value::Object(all)) => {
                all.values().for_each(|one| each(Onto::Same, one));
            }
            ("properties", Value::Object(all)) => all.iter().for_each(|(name, one)| each(Onto::Member(name), one)),
            ("patternProperties", Value::Object(all)) => all.values().for_each(|one| each(Onto::Members, one)),
            ("additionalProperties" | "unevaluatedProperties", one) => each(Onto::Members, one),
            ("propertyNames", one) => each(Onto::Names, one),
            ("items" | "prefixItems", Value::Array(all)) => all.iter().for_each(|one| each(Onto::Items, one)),
            ("items" | "additionalItems" | "contains" | "unevaluatedItems", one) => each(Onto::Items, one),
            _ => {}
        }
    }
}

/// Returns what a reference within a schema leads to.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// The place of a value in memory: the same value of one tree, and no other.
fn place(value: &Value) -> usize {
    std::ptr::from_ref(value) as usize
}

/// Returns how a schema refers to itself; `None` for one that cannot be bounded: that goes round without going into a value, is
/// deeper than [`MAX_HEIGHT`], goes round and asks what other parts have left over (that is found out anew at each level), or
/// says somewhere inside that references mean another document.
pub(super) fn shape(root: &Value) -> Option<Shape> {
    let all = reachable(root);
    let has = |key: &str| all.iter().any(|part| part.get(key).is_some());
    let named = |part: &&&Value| ["$id", "id"].iter().any(|key| part.get(*key).is_some_and(Value::is_string));
    if has("$ref") && all.iter().filter(|part| !std::ptr::eq(**part, root)).any(|part| named(&part)) {
        return None;
    }
    let mut at_one_value = Heights { root, only_same: true, known: HashMap::new() };
    all.iter().try_for_each(|part| at_one_value.of(part, 0).map(|_| ())).ok()?;
    match (Heights { root, only_same: false, known: HashMap::new() }).of(root, 0) {
        Ok(_) => Some(Shape::Finite),
        Err(Unbounded::Round) if !has("unevaluatedProperties") && !has("unevaluatedItems") => Some(Shape::Recursive),
        Err(Unbounded::Round | Unbounded::Deep) => None,
    }
}

/// Returns the parts of a schema that can be applied at all.
fn reachable(root: &Value) -> Vec<&Value> {
    let (mut found, mut seen, mut next) = (Vec::new(), HashSet::new(), vec![root]);
    while let Some(part) = next.pop() {
        if let Value::Object(of) = part
            && seen.insert(place(part))
        {
            found.push(part);
            parts(root, of, |_, one| next.push(one));
        }
    }
    found
}

enum Unbounded {
    Round,
    Deep,
}

/// How long the longest way on from each part is.
struct Heights<'s> {
    root: &'s Value,
    /// Whether only ways that stay at one value count.
    only_same: bool,
    /// None: it is being measured.
    known: HashMap<usize, Option<usize>>,
}

impl<'s> Heights<'s> {
    /// Of a part that stands so deep below the one that was asked about.
    fn of(&mut self, part: &'s Value, depth: usize) -> Result<usize, Unbounded> {
        let Value::Object(of) = part else { return Ok(1) };
        match self.known.get(&place(part)) {
            Some(Some(height)) => return Ok(*height),
            Some(None) => return Err(Unbounded::Round),
            None if depth >= MAX_HEIGHT => return Err(Unbounded::Deep),
            None => _ = self.known.insert(place(part), None),
        }
        let mut below = Vec::new();
        parts(self.root, of, |onto, one| {
            if !self.only_same || matches!(onto, Onto::Same) {
                below.push(one);
            }
        });
        let mut height = 1;
        for one in below {
            height = height.max(1 + self.of(one, depth + 1)?);
        }
        if height > MAX_HEIGHT {
            return Err(Unbounded::Deep);
        }
        self.known.insert(place(part), Some(height));
        Ok(height)
    }
}

/// Counts what applying a schema of [`Shape::Recursive`] to a value comes to, at most: every part that could be applied counts.
///
/// # Errors
/// [`TooHeavy`]: more than [`MAX_HEIGHT`] or [`MAX_STEPS`].
pub(super) fn weigh(schema: &Value, value: &Value) -> Result<Weight, TooHeavy> {
    Scale { root: schema, known: HashMap::new(), steps: 0 }.weigh(schema, value, 0)
}

struct Scale<'v> {
    root: &'v Value,
    /// By part and value; values in which nothing is are weighed again.
    known: HashMap<(usize, usize), Weight>,
    steps: usize,
}

impl<'v> Scale<'v> {
    fn weigh(&mut self, part: &'v Value, value: &'v Value, depth: usize) -> Result<Weight, TooHeavy> {
        self.steps += 1;
        let Value::Object(of) = part else { return Ok(Weight { height: 1, times: 1 }) };
        let key = (place(part), place(value));
        if let Some(weight) = self.known.get(&key) {
            // Reached by a longer way than before.
            return if depth + weight.height > MAX_HEIGHT { Err(TooHeavy) } else { Ok(*weight) };
        }
        if depth >= MAX_HEIGHT || self.steps > MAX_STEPS {
            return Err(TooHeavy);
        }
        let mut below = Vec::new();
        parts(self.root, of, |onto, one| below.extend(onto.values(value).map(|value| (one, value))));
        let mut weight = Weight { height: 1, times: 1 };
        for (one, value) in below {
            let own = self.weigh(one, value, depth + 1)?;
            weight.height = weight.height.max(1 + own.height);
            weight.times = weight.times.saturating_add(own.times);
        }
        if value.is_object() || value.is_array() {
            self.known.insert(key, weight);
        }
        Ok(weight)
    }
}

impl<'s> Onto<'s> {
    /// Returns what of `value` a part is applied to.
    fn values<'v>(self, value: &'v Value) -> impl Iterator<Item = &'v Value> + use<'s, 'v> {
        // Names are texts: nothing is in them.
        const NAME: &Value = &Value::Null;
        let (members, items) = (value.as_object(), value.as_array());
        let (same, one, all, names, items) = match self {
            Self::Same => (Some(value), None, None, 0, None),
            Self::Member(name) => (None, members.and_then(|members| members.get(name)), None, 0, None),
            Self::Members => (None, None, members, 0, None),
            Self::Names => (None, None, None, members.map_or(0, Map::len), None),
            Self::Items => (None, None, None, 0, items),
        };
        let all = all.into_iter().flat_map(Map::values);
        let names = std::iter::repeat_n(NAME, names);
        same.into_iter().chain(one).chain(all).chain(names).chain(items.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!({}), |inner, _| json!({ "a": inner }))
    }

    #[test]
    fn a_schema_may_refer_to_itself_where_each_way_round_goes_into_the_value() {
        let tree = json!({"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}});
        let lists = json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"anyOf": [{"type": "null"}, {"properties": {"next": {"$ref": "#/$defs/b"}}}]},
            "b": {"allOf": [{"additionalProperties": {"$ref": "#/$defs/a"}}]},
        }});
        for recursive in [tree, lists, json!({"propertyNames": {"$ref": "#"}}), json!({"contains": {"$ref": "#"}})] {
            assert_eq!(shape(&recursive), Some(Shape::Recursive), "{recursive}");
        }
        assert_eq!(
            shape(&json!({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {}}})),
            Some(Shape::Finite)
        );
        // What nothing refers to is not applied.
        assert_eq!(shape(&json!({"$defs": {"a": {"$ref": "#/$defs/a"}}})), Some(Shape::Finite));
    }

    #[test]
    fn a_schema_that_goes_round_at_one_value_is_refused_wherever_the_round_is_closed() {
        let in_place = ["allOf", "anyOf", "oneOf"].map(|key| json!({key: [{"$ref": "#"}]}));
        let one =
            ["not", "if", "then", "else"].map(|key| json!({"properties": {"a": {key: {"$ref": "#/properties/a"}}}}));
        let hidden = json!({
            // The first way to `b` goes into the value, the second does not.
            "properties": {"x": {"$ref": "#/$defs/b"}},
            "allOf": [{"$ref": "#/$defs/b"}],
            "$defs": {"b": {"allOf": [{"$ref": "#"}]}},
        });
        let depends = json!({"dependentSchemas": {"a": {"$ref": "#"}}});
        for bad in in_place.into_iter().chain(one).chain([hidden, depends, json!({"$ref": "#"})]) {
            assert_eq!(shape(&bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_bounded_is_refused() {
        let left_over = |key: &str| json!({"properties": {"a": {"$ref": "#"}}, key: false});
        assert_eq!(shape(&left_over("unevaluatedProperties")), None);
        assert_eq!(shape(&left_over("unevaluatedItems")), None);
        assert_eq!(shape(&json!({"unevaluatedProperties": false})), Some(Shape::Finite));
        let elsewhere = json!({"properties": {"a": {"$id": "https://a.example/", "allOf": [{"$ref": "#/$defs/x"}]}}, "$defs": {"x": {}}});
        assert_eq!(shape(&elsewhere), None);
        assert_eq!(
            shape(
                &json!({"$id": "https://a.example/", "properties": {"id": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}})
            ),
            Some(Shape::Finite)
        );
    }

    #[test]
    fn a_chain_of_references_is_as_long_as_it_is_from_whatever_end_it_is_measured() {
        let chain = |length: usize, name: &dyn Fn(usize) -> String| {
            let link = |at: usize| (name(at), json!({"$ref": format!("#/$defs/{}", name(at + 1))}));
            let mut defs: Map<String, Value> = (0..length).map(link).collect();
            defs.insert(name(length), json!({}));
            json!({"$defs": defs, "properties": {"a": {"$ref": format!("#/$defs/{}", name(0))}}})
        };
        for name in [&(|at| format!("{at:05}")) as &dyn Fn(usize) -> String, &|at| format!("{:05}", 99_999 - at)] {
            assert_eq!(shape(&chain(MAX_HEIGHT - 3, name)), Some(Shape::Finite));
            assert_eq!(shape(&chain(MAX_HEIGHT, name)), None);
            assert_eq!(shape(&chain(9_000, name)), None);
        }
    }

    #[test]
    fn a_value_is_weighed_by_its_depth_and_by_how_often_each_part_would_be_applied() {
        let once = json!({"properties": {"a": {"$ref": "#"}}});
        assert_eq!(weigh(&once, &nested(3)), Ok(Weight { height: 7, times: 7 }));
        assert_eq!(weigh(&once, &json!({"b": {"a": {}}})), Ok(Weight { height: 1, times: 1 }));
        let twice = json!({"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]});
        let weight = weigh(&twice, &nested(40)).unwrap();
        assert!(weight.times > 1 << 40 && weight.height < 200, "{weight:?}");
        assert_eq!(weigh(&once, &nested(127)), Ok(Weight { height: 255, times: 255 }));
        assert_eq!(weigh(&once, &nested(128)), Err(TooHeavy));
        let large = Value::Array(vec![json!([]); MAX_STEPS]);
        assert_eq!(weigh(&json!({"items": {"$ref": "#"}}), &large), Err(TooHeavy));
    }
}
