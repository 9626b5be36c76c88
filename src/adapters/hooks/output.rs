//! One output of a hook, read into a bounded buffer.

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::ports::hook::MAX_HOOK_OUTPUT;

/// How much is read at once.
const PIECE: usize = 16 * 1024;

/// What was printed so far.
pub(super) struct Output {
    stream: Option<Box<dyn AsyncRead + Send + Unpin>>,
    bytes: Vec<u8>,
}

impl Output {
    pub(super) fn of(stream: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self { stream: Some(Box::new(stream)), bytes: Vec::new() }
    }

    /// Whether its end was read.
    pub(super) fn is_over(&self) -> bool {
        self.stream.is_none()
    }

    /// Reads what comes next: false if it is more than a hook may print. Cancel-safe.
    pub(super) async fn more(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        let mut piece = [0; PIECE];
        match stream.read(&mut piece).await {
            // An output that cannot be read has ended.
            Ok(0) | Err(_) => self.stream = None,
            Ok(read) => self.bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
        }
        self.bytes.len() <= MAX_HOOK_OUTPUT
    }

    /// Returns it as text; none if it is no UTF-8.
    pub(super) fn text(self) -> Option<String> {
        String::from_utf8(self.bytes).ok()
    }

    /// Returns it as text, with marks in the place of what is no UTF-8.
    pub(super) fn lossy(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
