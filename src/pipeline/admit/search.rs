//! Search among tools that are not in the list: BM25 over what their definitions say (catalog-dispatch 3.3 rules 17 to
//! 19).
//!
//! The texts are those that may be shown. An index over what a sanitiser removed would tell, by what it finds, that it was
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;

use bm25::{Embedder, EmbedderBuilder, Embedding, Scorer, Tokenizer};
use serde_json::{Map, Value, json};

use super::words::words;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::text::prefix;
use crate::model::tool::CatalogTool;

/// The name of the search tool.
pub const TOOL_SEARCH: &str = "tool_search";
/// How many tools a search finds if it does not say.
pub const DEFAULT_LIMIT: usize = 8;
/// The most that a search may find.
pub const MAX_LIMIT: usize = 100;
/// The longest query, in bytes.
pub const MAX_QUERY: usize = 2 * 1024;
/// The most different words in a query: a search takes time for each of them in each tool.
pub const MAX_QUERY_WORDS: usize = 64;
/// How much of one text is searched (description, the namespace's description, all property names), in bytes. What is
/// beyond is told by [`SearchIndex::in_part`].
pub const MAX_TEXT: usize = 4 * 1024;
/// How many namespaces the search tool names; it says how many more there are.
pub const MAX_NAMED: usize = 64;

/// A tool with the texts that may be shown of it.
#[derive(Debug, Clone, Copy)]
pub struct ShownTool<'a> {
    /// The tool.
    pub tool: &'a Arc<CatalogTool>,
    /// Its definition as it may be shown.
    pub shown: &'a Map<String, Value>,
    /// Digest of that definition: with another one, an index is built anew.
    pub shown_digest: Digest,
    /// The description of its namespace as it may be shown; none if there is none or it may not.
    pub namespace_description: Option<&'a Arc<str>>,
}

/// What one entry was built from.
struct Entry {
    tool: Arc<CatalogTool>,
    shown: Digest,
    namespace_description: Option<Arc<str>>,
}

impl Entry {
    fn is_of(&self, searchable: &ShownTool<'_>) -> bool {
        let same_text = match (&self.namespace_description, searchable.namespace_description) {
            (None, None) => true,
            (Some(mine), Some(other)) => Arc::ptr_eq(mine, other) || mine == other,
            (None, Some(_)) | (Some(_), None) => false,
        };
        Arc::ptr_eq(&self.tool, searchable.tool) && self.shown == searchable.shown_digest && same_text
    }
}

/// A tool that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The tool.
    pub tool: Arc<CatalogTool>,
    /// How well it fits; more is better. Comparable within one search only.
    pub score: f32,
}

/// Why nothing was searched. The text is for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSearch {
    /// No query, or a blank one.
    #[error("query must not be empty")]
    Empty,
    /// The query is beyond [`MAX_QUERY`].
    #[error("query has {0} bytes; it may have at most {MAX_QUERY}")]
    Long(usize),
    /// The query is beyond [`MAX_QUERY_WORDS`].
    #[error("query has {0} different words; it may have at most {MAX_QUERY_WORDS}")]
    Words(usize),
    /// Nothing is wanted.
    #[error("limit must be greater than zero")]
    Zero,
    /// The limit is beyond [`MAX_LIMIT`].
    #[error("limit must be at most {MAX_LIMIT}, not {0}")]
    Limit(usize),
}

/// The tools that can be found, indexed. Immutable.
pub struct SearchIndex {
    entries: Vec<Entry>,
    embedder: Embedder<u64, Spaced>,
    scorer: Scorer<usize, u64>,
    in_part: Vec<ToolRef>,
}

impl std::fmt::Debug for SearchIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SearchIndex").field("tools", &self.entries.len()).finish_non_exhaustive()
    }
}

impl SearchIndex {
    /// Returns an index of these tools: the previous one if it has the same tools in the same order, each by identity,
    /// with the same texts shown (rule 19). Time and memory grow with the texts.
    #[must_use]
    pub fn of(tools: &[ShownTool<'_>], previous: Option<&Arc<Self>>) -> Arc<Self> {
        if let Some(previous) = previous
            && previous.entries.len() == tools.len()
            && previous.entries.iter().zip(tools).all(|(entry, tool)| entry.is_of(tool))
        {
            return Arc::clone(previous);
        }
        let mut in_part = Vec::new();
        let texts: Vec<String> = tools
            .iter()
            .map(|tool| {
                let (text, whole) = text_of(tool);
                if !whole {
                    in_part.push(tool.tool.reference());
                }
                words(&text).join(" ")
            })
            .collect();
        let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder = EmbedderBuilder::<u64, Spaced>::with_tokenizer_and_fit_to_corpus(Spaced, &borrowed).build();
        let mut scorer = Scorer::new();
        for (index, text) in texts.iter().enumerate() {
            scorer.upsert(&index, distinct(embedder.embed(text)));
        }
        let entries = tools.iter().map(|tool| Entry {
            tool: Arc::clone(tool.tool),
            shown: tool.shown_digest,
            namespace_description: tool.namespace_description.cloned(),
        });
        Arc::new(Self { entries: entries.collect(), embedder, scorer, in_part })
    }

    /// Returns how many tools can be found.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether no tool can be found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the tools of which a text is longer than [`MAX_TEXT`]: what is beyond is not searched.
    #[must_use]
    pub fn in_part(&self) -> &[ToolRef] {
        &self.in_part
    }

    /// Finds at most `limit` tools (none: [`DEFAULT_LIMIT`]), the best first; equal ones in the order of the index. Tools
    /// without any word of the query are not found.
    ///
    /// # Errors
    /// [`BadSearch`] if the query is blank or too long, or the limit is not between 1 and [`MAX_LIMIT`].
    pub fn search(&self, query: &str, limit: Option<usize>) -> Result<Vec<Found>, BadSearch> {
        if query.trim().is_empty() {
            return Err(BadSearch::Empty);
        }
        if query.len() > MAX_QUERY {
            return Err(BadSearch::Long(query.len()));
        }
        let limit = match limit.unwrap_or(DEFAULT_LIMIT) {
            0 => return Err(BadSearch::Zero),
            limit if limit > MAX_LIMIT => return Err(BadSearch::Limit(limit)),
            limit => limit,
        };
        let query = distinct(self.embedder.embed(&words(query).join(" ")));
        if query.0.len() > MAX_QUERY_WORDS {
            return Err(BadSearch::Words(query.0.len()));
        }
        let mut scored = self.scorer.matches(&query);
        // The library leaves equal ones in the order of a hash table.
        scored.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
        let found = scored.into_iter().take(limit).filter_map(|scored| {
            let entry = self.entries.get(scored.id)?;
            Some(Found { tool: Arc::clone(&entry.tool), score: scored.score })
        });
        Ok(found.collect())
    }

    /// Returns the spec of the search tool, which names the namespaces that have tools to be found. Nothing in it was
    /// written by a server.
    #[must_use]
    pub fn spec(&self) -> Value {
        let mut namespaces = BTreeMap::<(&str, &str), usize>::new();
        for Entry { tool, .. } in &self.entries {
            *namespaces.entry((tool.namespace.as_str(), tool.server.as_str())).or_default() += 1;
        }
        let mut description =
            "Finds tools that are not in the list, by what they do. A tool that was found can be called \
                               from then on."
                .to_owned();
        if !namespaces.is_empty() {
            description.push_str(" Tools can be found in:");
        }
        for ((namespace, server), count) in namespaces.iter().take(MAX_NAMED) {
            let tools = if *count == 1 { "1 tool".to_owned() } else { format!("{count} tools") };
            description.push_str(&format!("\n- {namespace} (server {server}): {tools}"));
        }
        if let Some(more) = namespaces.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            description.push_str(&format!("\n- {more} more"));
        }
        json!({
            "type": "function",
            "name": TOOL_SEARCH,
            "description": description,
            "strict": false,
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "description": "What the tool should do, or its name, in a few English words.",
                    },
                    "limit": {
                        "type": "integer",
                        "description": format!(
                            "How many tools to return at most: 1 to {MAX_LIMIT}, {DEFAULT_LIMIT} if left out."
                        ),
                    },
                },
                "required": ["query"],
                "additionalProperties": false,
            },
        })
    }
}

/// Splits what [`words`] has made: they have no spaces.
#[derive(Debug)]
struct Spaced;

impl Tokenizer for Spaced {
    fn tokenize(&self, text: &str) -> Vec<String> {
        text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }
}

/// Keeps each word once, in an order that depends on nothing but the words. The library keeps a repeated word as often as it
/// is there, all with one value, looks through them for each word of a query, and counts a query's word as often.
fn distinct(mut embedding: Embedding<u64>) -> Embedding<u64> {
    embedding.0.sort_by_key(|word| word.index);
    embedding.0.dedup_by_key(|word| word.index);
    embedding
}

/// The text of rule 17, with the gateway's name beside the flat one, and whether all of it is there.
fn text_of(searchable: &ShownTool<'_>) -> (String, bool) {
    let (tool, shown) = (searchable.tool, searchable.shown);
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let title = match text(shown.get("title")) {
        title if title.is_empty() => text(shown.get("annotations").and_then(|notes| notes.get("title"))),
        title => title,
    };
    let properties = shown.get("inputSchema").and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    let mut properties: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
    properties.sort_unstable();
    let pieces = [
        format!("{}{}", tool.namespace, tool.callable),
        tool.flat.to_string(),
        tool.callable.to_string(),
        tool.definition.name().to_string(),
        tool.server.to_string(),
        title,
        text(shown.get("description")),
        tool.connector.as_ref().and_then(|connector| connector.name.clone()).unwrap_or_default(),
        searchable.namespace_description.map(ToString::to_string).unwrap_or_default(),
        tool.plugin.as_ref().map(|plugin| plugin.name.clone()).unwrap_or_default(),
        properties.join(" "),
    ];
    let whole = pieces.iter().all(|piece| piece.len() <= MAX_TEXT);
    let kept: Vec<&str> =
        pieces.iter().map(|piece| prefix(piece.trim(), MAX_TEXT)).filter(|piece| !piece.is_empty()).collect();
    (kept.join(" "), whole)
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
