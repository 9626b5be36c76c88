//! The host's search in texts, for guests that are too small to have a regex engine of their own.
//!
//! Patterns are regular expressions in the syntax of the `regex` crate; word boundaries are written `(?-u:\\b)`. A lazy DFA
//! runs them: linear in the text, with a bounded memory, and it gives up where patterns are so involved that it would be slow.
//! A set is compiled once and kept by the digest of its list, a bounded number for each tenant.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use regex_automata::hybrid::{dfa, regex};
use regex_automata::nfa::thompson;
use regex_automata::util::{prefilter::Prefilter, syntax};
use regex_automata::{Anchored, Input, MatchKind, PatternSet};

use crate::model::caller::TenantId;
use crate::model::digest::Digest;
use crate::model::text::shown;
use crate::model::verdict::{Fault, FaultCode};
use crate::ports::sanitiser::Span;

/// The most patterns of one search.
const MAX_PATTERNS: usize = 256;
/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1024;
/// How large one compiled pattern may be, in bytes.
const MAX_COMPILED: usize = 256 * 1024;
/// How large all compiled patterns of a set may be, in bytes.
const MAX_COMPILED_SET: usize = 2 * 1024 * 1024;
/// How much memory a search may use for the states that it has seen, in bytes.
const CACHE: usize = 2 * 1024 * 1024;
/// How many sets are kept for one tenant, with how many bytes together, and of how many tenants.
const KEPT_SETS: usize = 32;
const KEPT_BYTES: usize = 8 * 1024 * 1024;
const KEPT_TENANTS: usize = 64;
/// The most places that one search may find.
pub(super) const MAX_SPANS: usize = 10_000;

/// A compiled list of patterns.
pub(super) struct Patterns {
    /// Which of those that begin with no literal are in a text at all, and their indexes.
    any: dfa::DFA,
    slow: Vec<usize>,
    /// Where each of them is. One that begins with literals is looked for by those, much faster than a DFA runs.
    each: Vec<regex::Regex>,
    quick: Vec<usize>,
    /// How large all of it is, in bytes.
    size: usize,
}

impl Patterns {
    /// Compiles a list.
    ///
    /// # Errors
    /// An `output-invalid` fault that names the pattern, for one that is none, is too long or too large.
    pub(super) fn compile(list: &[String]) -> Result<Self, Fault> {
        if list.len() > MAX_PATTERNS {
            return Err(invalid(format!("it looks for {} patterns at once, more than {MAX_PATTERNS}", list.len())));
        }
        if let Some(long) = list.iter().find(|pattern| pattern.len() > MAX_PATTERN) {
            return Err(invalid(format!("its pattern `{}` is longer than {MAX_PATTERN} bytes", shown(long, 64))));
        }
        let config = || {
            dfa::Config::new().cache_capacity(CACHE).minimum_cache_clear_count(Some(4)).minimum_bytes_per_state(Some(8))
        };
        let (mut each, mut size) = (Vec::with_capacity(list.len()), 0_usize);
        let (mut quick, mut slow) = (Vec::new(), Vec::new());
        for (index, pattern) in list.iter().enumerate() {
            let refused = |why: &str| invalid(format!("its pattern `{}` cannot be used: {why}", shown(pattern, 64)));
            let begins = literals(pattern).filter(Prefilter::is_fast);
            size += begins.as_ref().map_or(0, Prefilter::memory_usage);
            if begins.is_some() { &mut quick } else { &mut slow }.push(index);
            let built = regex::Builder::new()
                .dfa(config().specialize_start_states(begins.is_some()).prefilter(begins))
                .thompson(thompson::Config::new().nfa_size_limit(Some(MAX_COMPILED)))
                .build(pattern)
                .map_err(|error| refused(&chain(&error)))?;
            size += built.forward().get_nfa().memory_usage() + built.reverse().get_nfa().memory_usage();
            // Looked at after each: a list must not take its memory before it is refused.
            if size > 2 * MAX_COMPILED_SET {
                return Err(refused("with those before it, it is too large when compiled"));
            }
            each.push(built);
        }
        let any = dfa::Builder::new()
            .configure(config().match_kind(MatchKind::All))
            .thompson(thompson::Config::new().nfa_size_limit(Some(MAX_COMPILED_SET)))
            .build_many(&slow.iter().filter_map(|index| list.get(*index)).collect::<Vec<_>>())
            .map_err(|error| invalid(format!("its patterns cannot be used together: {}", chain(&error))))?;
        size += any.get_nfa().memory_usage();
        Ok(Self { any, slow, each, quick, size })
    }

    /// Finds every pattern in a text, in order of place. `may_go_on` is asked before each search.
    ///
    /// # Errors
    /// What `may_go_on` says; a `fuel` fault for patterns that would be slow on this text; `input-too-large` for more than
    /// [`MAX_SPANS`] places.
    pub(super) fn find(
        &self,
        text: &str,
        mut may_go_on: impl FnMut() -> Result<(), Fault>,
    ) -> Result<Vec<Span>, Fault> {
        let slow = |_| Fault::new(FaultCode::Fuel, "its patterns are too involved for this text");
        may_go_on()?;
        let mut present = PatternSet::new(self.slow.len());
        if !self.slow.is_empty() {
            let mut cache = self.any.create_cache();
            self.any.try_which_overlapping_matches(&mut cache, &Input::new(text), &mut present).map_err(slow)?;
        }
        let mut spans = Vec::new();
        let there = present.iter().filter_map(|id| self.slow.get(id.as_usize()));
        for &id in self.quick.iter().chain(there) {
            let Some(pattern) = self.each.get(id) else { continue };
            let mut cache = pattern.create_cache();
            let mut input = Input::new(text).anchored(Anchored::No);
            while input.start() <= text.len() {
                may_go_on()?;
                let Some(found) = pattern.try_search(&mut cache, &input).map_err(slow)? else { break };
                if found.is_empty() {
                    // Nothing is removed by an empty place; go on behind the next character.
                    let next = text[found.end()..].chars().next().map_or(1, char::len_utf8);
                    if found.end() + next > text.len() {
                        break;
                    }
                    input.set_start(found.end() + next);
                    continue;
                }
                if spans.len() == MAX_SPANS {
                    return Err(Fault::new(
                        FaultCode::InputTooLarge,
                        format!("it would find more than {MAX_SPANS} places"),
                    ));
                }
                let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
                spans.push(Span { pattern: place(id), start: place(found.start()), end: place(found.end()) });
                input.set_start(found.end());
            }
        }
        spans.sort_unstable();
        Ok(spans)
    }
}

/// What a pattern begins with, as a search for literals; none where it begins with anything.
fn literals(pattern: &str) -> Option<Prefilter> {
    let parsed = syntax::parse(pattern).ok()?;
    Prefilter::from_hirs_prefix(MatchKind::LeftmostFirst, &[parsed])
}

/// Compiled sets of each tenant, by the digest of the list; the one used longest ago goes first.
#[derive(Default)]
pub(super) struct PatternSets(Mutex<HashMap<TenantId, Kept>>);

/// The sets of one tenant, the one used last at the end.
type Kept = VecDeque<(Digest, Arc<Patterns>)>;

impl PatternSets {
    /// Returns the compiled list, from memory if it is there.
    ///
    /// # Errors
    /// Those of [`Patterns::compile`].
    pub(super) fn get(&self, tenant: &TenantId, list: &[String]) -> Result<Arc<Patterns>, Fault> {
        let digest = Digest::of_parts(list.iter().map(String::as_bytes));
        if let Some(found) = self.find(tenant, digest) {
            return Ok(found);
        }
        // Not under the lock: compiling takes up to milliseconds.
        let compiled = Arc::new(Patterns::compile(list)?);
        let mut tenants = self.0.lock();
        if !tenants.contains_key(tenant) && tenants.len() >= KEPT_TENANTS {
            // Any one: it compiles anew when it comes back.
            let other = tenants.keys().next().cloned();
            other.map(|other| tenants.remove(&other));
        }
        let sets = tenants.entry(tenant.clone()).or_default();
        sets.retain(|(known, _)| *known != digest);
        sets.push_back((digest, Arc::clone(&compiled)));
        while sets.len() > KEPT_SETS || sets.iter().map(|(_, set)| set.size).sum::<usize>() > KEPT_BYTES {
            sets.pop_front();
        }
        Ok(compiled)
    }

    fn find(&self, tenant: &TenantId, digest: Digest) -> Option<Arc<Patterns>> {
        let mut tenants = self.0.lock();
        let sets = tenants.get_mut(tenant)?;
        let at = sets.iter().position(|(known, _)| *known == digest)?;
        let entry = sets.remove(at)?;
        let found = Arc::clone(&entry.1);
        sets.push_back(entry);
        Some(found)
    }
}

fn invalid(detail: String) -> Fault {
    Fault::new(FaultCode::OutputInvalid, detail)
}

/// The error and its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        out = format!("{out}: {error}");
        cause = error.source();
    }
    out.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(patterns: &[&str], text: &str) -> Result<Vec<(u32, u32, u32)>, Fault> {
        let list: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let spans = Patterns::compile(&list)?.find(text, || Ok(()))?;
        Ok(spans.into_iter().map(|span| (span.pattern, span.start, span.end)).collect())
    }

    #[test]
    fn every_pattern_is_found_in_order_of_place_also_where_they_overlap() {
        assert_eq!(find(&["b+", "abb"], "abb ä bb").unwrap(), [(1, 0, 3), (0, 1, 3), (0, 7, 9)]);
        assert_eq!(find(&["x*"], "ayx").unwrap(), [(0, 2, 3)], "an empty place is none");
        assert_eq!(find(&["(?-u:\\b)key(?-u:\\b)"], "ékey key").unwrap().len(), 2);
        assert_eq!(find(&[], "abc").unwrap(), []);
    }

    #[test]
    fn r41_what_is_no_pattern_or_too_large_is_a_fault_that_names_it() {
        for bad in ["(", &"a".repeat(MAX_PATTERN + 1), "(\\w{100}){100}"] {
            let fault = find(&["fine", bad], "text").unwrap_err();
            assert_eq!(fault.code, FaultCode::OutputInvalid, "{fault}");
            assert!(fault.detail.contains(&bad[..1]), "{fault}");
        }
        // Each of them is small enough, all together are not.
        let large: Vec<String> = (0..MAX_PATTERNS).map(|n| format!("{n}(?-u:[a-z]{{900}})")).collect();
        let fault = Patterns::compile(&large).map(drop).unwrap_err();
        assert!(fault.detail.contains("too large"), "{fault}");
        let many: Vec<&str> = std::iter::repeat_n("a", MAX_PATTERNS + 1).collect();
        assert_eq!(find(&many, "a").unwrap_err().code, FaultCode::OutputInvalid);
        assert_eq!(find(&["a"], &"a".repeat(MAX_SPANS + 1)).unwrap_err().code, FaultCode::InputTooLarge);
    }

    #[test]
    fn a_search_ends_when_it_may_not_go_on() {
        let patterns = Patterns::compile(&["a".to_owned()]).unwrap();
        let mut left = 3;
        let fault = patterns
            .find(&"a".repeat(100), || {
                left -= 1;
                if left > 0 { Ok(()) } else { Err(Fault::new(FaultCode::Deadline, "over")) }
            })
            .unwrap_err();
        assert_eq!(fault.code, FaultCode::Deadline);
    }

    #[test]
    fn r37_sets_are_kept_by_digest_for_each_tenant_and_never_without_bound() {
        let sets = PatternSets::default();
        let (one, other) = (TenantId::new("one"), TenantId::new("other"));
        let list = |n: usize| vec![format!("a{n}")];
        let first = sets.get(&one, &list(0)).unwrap();
        assert!(Arc::ptr_eq(&first, &sets.get(&one, &list(0)).unwrap()));
        assert!(!Arc::ptr_eq(&first, &sets.get(&other, &list(0)).unwrap()), "tenants share nothing");
        for n in 1..=KEPT_SETS {
            sets.get(&one, &list(n)).unwrap();
        }
        assert_eq!(sets.0.lock()[&one].len(), KEPT_SETS);
        assert!(!Arc::ptr_eq(&first, &sets.get(&one, &list(0)).unwrap()), "the oldest is still there");
        for n in 0..64 {
            sets.get(&other, &[format!("{n}(?-u:[a-z]{{900}}){{3}}")]).unwrap();
        }
        let kept: usize = sets.0.lock()[&other].iter().map(|(_, set)| set.size).sum();
        assert!(kept <= KEPT_BYTES, "{kept} bytes are kept");
        for n in 0..2 * KEPT_TENANTS {
            sets.get(&TenantId::new(format!("t{n}")), &list(0)).unwrap();
        }
        assert!(sets.0.lock().len() <= KEPT_TENANTS);
    }
}
