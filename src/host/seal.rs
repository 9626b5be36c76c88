//! References to tools that a search has found, sealed: a reference is of one tool with one definition, in one session (R24).
//!
//! A reference reads `<name>#<16 hex digits>`. The digits are the beginning of an HMAC-SHA256 over server, raw name and digest of
//! the definition, under a key that only this session has. So a reference cannot be made up, carried into another session, or
//! used for a tool that is defined otherwise by now.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::tool::CatalogTool;

/// How many bytes of the HMAC are in a reference: guessing one takes 2^63 tries, and each is a call.
const KEPT: usize = 8;

/// Why a reference leads nowhere. The text is for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSeal {
    /// Not one of this session's.
    #[error(
        "the reference is none that a search in this session gave; search for the tool and take the reference from there"
    )]
    Foreign,
    /// The tool was shown with another definition since, or the digits are not its own.
    #[error("the reference is not that of the tool as it was shown last; search again")]
    Outdated,
}

/// One session's key.
pub(super) struct Seal(Option<[u8; 32]>);

impl Seal {
    pub(super) fn fresh() -> Self {
        let mut key = [0; 32];
        // Without random numbers nothing is sealed, and no reference fits.
        Self(getrandom::fill(&mut key).is_ok().then_some(key))
    }

    /// Returns the reference to a tool as it is defined now.
    pub(super) fn of(&self, tool: &CatalogTool) -> String {
        let digits = self.digits(&tool.reference(), tool.definition.digest()).unwrap_or_default();
        format!("{}#{digits}", tool.flat)
    }

    /// Whether a reference is that of this tool with this definition.
    pub(super) fn fits(&self, reference: &str, name: &str, tool: &ToolRef, definition: Digest) -> bool {
        let given = reference.strip_prefix(name).and_then(|rest| rest.strip_prefix('#'));
        // Not a secret of the caller: whoever tries gets a refusal each time, and the key ends with the session.
        given.is_some() && given == self.digits(tool, definition).as_deref()
    }

    fn digits(&self, tool: &ToolRef, definition: Digest) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0?).ok()?;
        for part in [tool.server.as_str().as_bytes(), tool.tool.as_str().as_bytes(), definition.as_bytes()] {
            mac.update(&u64::try_from(part.len()).ok()?.to_be_bytes());
            mac.update(part);
        }
        let mac = mac.finalize().into_bytes();
        Some(mac.iter().take(KEPT).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Returns the name in a reference; none if it is no reference.
pub(super) fn name_in(reference: &str) -> Option<&str> {
    reference.rsplit_once('#').map(|(name, _)| name)
}
