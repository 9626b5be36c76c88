//! Cuts text from its middle, so that its beginning and its end stay readable.
//!
//! Rules: approval-results 8.1. The marker comes on top of the budget: a cut text may be longer than the budget by it.

use serde::{Deserialize, Serialize};

/// How many bytes one token is taken for.
const BYTES_PER_TOKEN: usize = 4;

/// How much text a model gets of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// At most so many bytes.
    Bytes(usize),
    /// At most so many tokens, a token being four bytes.
    Tokens(usize),
}

impl Default for Policy {
    /// What most models are given: 10,000 tokens.
    fn default() -> Self {
        Self::Tokens(10_000)
    }
}

impl Policy {
    /// Returns the budget that is cut to: the policy and a fifth, rounded up.
    ///
    /// The fifth is for what surrounds a text (header, JSON syntax, escapes), so that an answer that just fits is not
    /// cut because of its wrapping.
    #[must_use]
    pub fn with_allowance(self) -> Self {
        let more = |n: usize| n.saturating_add(n.div_ceil(5));
        match self {
            Self::Bytes(n) => Self::Bytes(more(n)),
            Self::Tokens(n) => Self::Tokens(more(n)),
        }
    }

    /// Returns the number, in the policy's unit.
    #[must_use]
    pub fn budget(self) -> usize {
        let (Self::Bytes(n) | Self::Tokens(n)) = self;
        n
    }

    /// Returns the policy of the same unit with another number.
    #[must_use]
    pub fn with_budget(self, budget: usize) -> Self {
        match self {
            Self::Bytes(_) => Self::Bytes(budget),
            Self::Tokens(_) => Self::Tokens(budget),
        }
    }

    /// Returns the policy of the same unit for so many tokens.
    #[must_use]
    pub fn of_tokens(self, tokens: usize) -> Self {
        self.with_budget(self.cost_of_tokens(tokens))
    }

    /// Returns what `bytes` bytes of text cost, in the policy's unit.
    #[must_use]
    pub fn cost(self, bytes: usize) -> usize {
        match self {
            Self::Bytes(_) => bytes,
            Self::Tokens(_) => bytes.div_ceil(BYTES_PER_TOKEN),
        }
    }

    /// Returns what `tokens` tokens cost, in the policy's unit.
    #[must_use]
    pub fn cost_of_tokens(self, tokens: usize) -> usize {
        match self {
            Self::Bytes(_) => tokens.saturating_mul(BYTES_PER_TOKEN),
            Self::Tokens(_) => tokens,
        }
    }
}

/// Returns `text`, or what is left of it when its middle is cut out to fit `policy`.
///
/// Half of the budget goes to the beginning and the rest to the end, whole characters only; between them stands
/// `…N chars truncated…` with the number of characters left out, or `…N tokens truncated…` with the estimate for the
/// bytes over the budget. A budget of zero leaves the marker alone.
#[must_use]
pub fn cut(text: &str, policy: Policy) -> String {
    let max = match policy {
        Policy::Bytes(n) => n,
        Policy::Tokens(n) => n.saturating_mul(BYTES_PER_TOKEN),
    };
    if text.len() <= max {
        return text.to_owned();
    }
    let left = max / 2;
    let (head, rest) = text.split_at(text.floor_char_boundary(left));
    // The text is longer than the budget, so the end's start lies behind the beginning's end.
    let (middle, tail) = rest.split_at(text.ceil_char_boundary(text.len() - (max - left)) - head.len());
    match policy {
        Policy::Bytes(_) => format!("{head}…{} chars truncated…{tail}", middle.chars().count()),
        Policy::Tokens(_) => {
            format!("{head}…{} tokens truncated…{tail}", (text.len() - max).div_ceil(BYTES_PER_TOKEN))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMOJI: &str = "😀😀😀😀😀😀😀😀😀😀\nsecond line with text\n";

    #[test]
    fn t01_to_t05_the_middle_is_cut_and_counted() {
        assert_eq!(cut("abcdef", Policy::Tokens(0)), "…2 tokens truncated…");
        assert_eq!(cut("example output", Policy::Bytes(1)), "…13 chars truncated…t");
        assert_eq!(cut("example output", Policy::Tokens(1)), "ex…3 tokens truncated…ut");
        assert_eq!(cut(EMOJI, Policy::Bytes(20)), "😀😀…21 chars truncated…with text\n");
        assert_eq!(cut(EMOJI, Policy::Tokens(8)), "😀😀😀😀…8 tokens truncated… line with text\n");
    }

    #[test]
    fn t06_t07_the_allowance_is_a_fifth_rounded_up() {
        let bytes = [1, 10, 99, 128, 1024, 10_000].map(|n| Policy::Bytes(n).with_allowance().budget());
        assert_eq!(bytes, [2, 12, 119, 154, 1229, 12_000]);
        let tokens = [1, 3, 7, 500].map(|n| Policy::Tokens(n).with_allowance().budget());
        assert_eq!(tokens, [2, 4, 9, 600]);
        assert_eq!(Policy::Tokens(usize::MAX).with_allowance().budget(), usize::MAX);
    }

    #[test]
    fn empty_text_stays_empty_and_zero_bytes_count_every_character() {
        assert_eq!(cut("", Policy::Bytes(0)), "");
        assert_eq!(cut("äöü", Policy::Bytes(0)), "…3 chars truncated…");
    }

    proptest! {
        #[test]
        fn a_cut_keeps_beginning_and_end_within_the_budget(text: String, n in 0_usize..64, tokens: bool) {
            let policy = if tokens { Policy::Tokens(n) } else { Policy::Bytes(n) };
            let max = if tokens { n * BYTES_PER_TOKEN } else { n };
            let out = cut(&text, policy);
            if text.len() <= max {
                prop_assert_eq!(out, text);
            } else {
                let unit = if tokens { " tokens truncated…" } else { " chars truncated…" };
                let at = out.find(unit).unwrap();
                let marker = out[..at].rfind('…').unwrap();
                let (head, tail) = (&out[..marker], &out[at + unit.len()..]);
                prop_assert!(head.len() + tail.len() <= max);
                prop_assert!(text.starts_with(head) && text.ends_with(tail));
            }
        }
    }
}
