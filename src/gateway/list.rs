//! The tool list as the client sees it: pages, cursors, and what makes two lists the same.
//!
//! A definition is the upstream's own text, byte for byte, but for the value of `name`, which is the gateway's, and for what
//! sanitisers removed (R31). The order is
//! that of the catalog: by raw identity. A cursor holds for the revision that it was made in; after a change the client has to
//! begin again, or it would miss tools.

use std::sync::Arc;

use serde::Deserialize;

use crate::host::listing::Listing;
use crate::model::digest::Digest;
use crate::model::revision::Revision;
use crate::model::tool::CatalogTool;

/// The most tools of one page.
pub const PAGE: usize = 500;
/// The size from which no tool is added to a page, in bytes of JSON. One tool may have a mebibyte.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// The longest cursor of ours.
const MAX_CURSOR: usize = 64;

/// A cursor that leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadCursor {
    /// The parameters are no object, or the cursor is no text.
    #[error("invalid params: `params` must be an object whose `cursor` is a string")]
    Shape,
    /// Not one of ours.
    #[error("invalid params: the `cursor` is not one that this server gave")]
    Foreign,
    /// The list changed since.
    #[error("invalid params: the `cursor` is for a list that has changed since; list the tools from the beginning")]
    Outdated,
}

/// Returns the cursor of a `tools/list` request. Read from the text: rmcp takes parameters of the wrong shape for none.
pub(super) fn cursor(params: Option<&str>) -> Result<Option<String>, BadCursor> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(default)]
        cursor: Option<String>,
    }
    let Some(params) = params else { return Ok(None) };
    // Serde would take an array for a struct, too.
    let params = if params.starts_with('{') { params } else { "" };
    serde_json::from_str::<Params>(params).map(|params| params.cursor).map_err(|_| BadCursor::Shape)
}

/// One page: the text of the `tools/list` result, and the tools that it shows.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) text: String,
    pub(super) shown: Vec<Arc<CatalogTool>>,
}

impl Page {
    /// Says to a client of the stateless era that the list is this caller's, and may change at any time.
    pub(super) fn forbid_caching(&mut self) {
        self.text.insert_str(1, r#""ttlMs":0,"cacheScope":"private","#);
    }
}

/// Returns the page from `cursor` on; the first begins with `ours`, the definitions of our own tools.
///
/// A cursor counts the tools of the whole catalog: those that are hidden may be others by the next page.
pub(super) fn page(listing: &Listing, ours: &str, cursor: Option<&str>, size: usize) -> Result<Page, BadCursor> {
    let (revision, all) = (listing.snapshot().revision(), listing.snapshot().tools());
    let start = cursor.map_or(Ok(0), |cursor| parse(cursor, revision, all.len()))?;
    let mut out = String::from(r#"{"tools":["#);
    let mut shown: Vec<Arc<CatalogTool>> = Vec::new();
    let visible = all.iter().enumerate().skip(start);
    let is_listed = |tool: &Arc<CatalogTool>| {
        listing.exposure(&tool.reference()).is_some_and(|exposed| exposed.exposure.is_listed())
    };
    let visible = visible.filter(|(_, tool)| is_listed(tool));
    let visible = visible.filter_map(|(at, tool)| Some((at, tool, listing.shown(&tool.reference())?)));
    let mut next = None;
    if start == 0 {
        out.push_str(ours);
    }
    for (at, tool, definition) in visible {
        if shown.len() == size.max(1) || !shown.is_empty() && out.len() >= PAGE_BYTES {
            next = Some(at);
            break;
        }
        if !out.ends_with('[') {
            out.push(',');
        }
        definition.write_renamed(tool.flat.as_str(), &mut out);
        shown.push(Arc::clone(tool));
    }
    out.push(']');
    if let Some(next) = next {
        out.push_str(r#","nextCursor":""#);
        out.push_str(&cursor_at(revision, next));
        out.push('"');
    }
    out.push('}');
    Ok(Page { text: out, shown })
}

/// Returns what a client sees, as a digest: `ours`, the definitions of our own tools, and what is listed.
pub(super) fn visible(listing: &Listing, ours: &str) -> Digest {
    // The raw digest, too: a definition that changed only where it is edited must be listed again, or its calls are stale.
    let shown =
        listing.tools().iter().filter_map(|tool| Some((tool, listing.shown(&tool.reference())?.shown_digest())));
    let digests: Vec<_> = shown.map(|(tool, shown)| (tool, tool.definition.digest(), shown)).collect();
    let listed = digests.iter().flat_map(|(tool, raw, shown)| {
        [tool.flat.as_str().as_bytes(), raw.as_bytes().as_slice(), shown.as_bytes().as_slice()]
    });
    Digest::of_parts(std::iter::once(ours.as_bytes()).chain(listed))
}

fn cursor_at(revision: Revision, offset: usize) -> String {
    format!("{:x}.{offset:x}", revision.number())
}

fn parse(cursor: &str, revision: Revision, tools: usize) -> Result<usize, BadCursor> {
    if cursor.len() > MAX_CURSOR {
        return Err(BadCursor::Foreign);
    }
    let (of, offset) = cursor.split_once('.').ok_or(BadCursor::Foreign)?;
    let of = u64::from_str_radix(of, 16).map_err(|_| BadCursor::Foreign)?;
    let offset = usize::from_str_radix(offset, 16).map_err(|_| BadCursor::Foreign)?;
    if of != revision.number() {
        return Err(BadCursor::Outdated);
    }
    if (1..tools).contains(&offset) { Ok(offset) } else { Err(BadCursor::Foreign) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_place_in_its_revision_only() {
        let revision = Revision::FIRST.next();
        let cursor = cursor_at(revision, 500);
        assert_eq!(parse(&cursor, revision, 501), Ok(500));
        assert_eq!(parse(&cursor, revision.next(), 501), Err(BadCursor::Outdated));
    }

    #[test]
    fn a_cursor_that_is_no_text_is_refused_and_none_is_none() {
        assert_eq!(cursor(None), Ok(None));
        for none in ["{}", r#"{"cursor":null,"_meta":{}}"#] {
            assert_eq!(cursor(Some(none)), Ok(None));
        }
        assert_eq!(cursor(Some(r#"{"cursor":"1.2"}"#)), Ok(Some("1.2".to_owned())));
        for bad in [r#"{"cursor":7}"#, r#""text""#, "[]", "7"] {
            assert_eq!(cursor(Some(bad)), Err(BadCursor::Shape), "{bad} was taken");
        }
    }

    #[test]
    fn a_foreign_cursor_is_refused() {
        let long = "1.".repeat(100);
        for bad in ["", "1", ".", "1.", "1.zz", "1.0", "1.9", "-1.1", "1.1.1", &long] {
            assert_eq!(parse(bad, Revision::FIRST.next(), 9), Err(BadCursor::Foreign), "{bad:?} was taken");
        }
    }
}
