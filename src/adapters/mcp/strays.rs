//! Answers that nobody waits for: which of them are as they should be, and which are a server's mistake.
//!
//! An answer to a request that we gave up is no mistake: the two have crossed. One to a request that was never made, and a
//! second one to the same request, are; they are dropped, and reported as rubbish is.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rmcp::model::RequestId;

use super::envelope::our_number;

/// How many requests that were given up, and how many of rmcp's own, are remembered.
const MAX: usize = 1024;

/// What is remembered of the requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Strays(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Requests that rmcp makes by itself: the handshake.
    own: VecDeque<i64>,
    given_up: VecDeque<i64>,
    /// The highest number that was sent.
    highest: Option<i64>,
}

/// What an answer is that nobody of us waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stray {
    /// rmcp's.
    Own,
    /// It has crossed with our giving up.
    Late,
    /// A mistake, with what it is.
    Mistake(&'static str),
}

impl Strays {
    /// A request is about to be written; `own`: one of rmcp's.
    pub(super) fn sent(&self, number: i64, own: bool) {
        let mut known = self.0.lock();
        known.highest = known.highest.max(Some(number));
        if own {
            keep(&mut known.own, number);
        }
    }

    /// A request was given up before its answer came.
    pub(super) fn gave_up(&self, number: i64) {
        keep(&mut self.0.lock().given_up, number);
    }

    /// Judges an answer, which is then known to have come.
    pub(super) fn came(&self, id: &RequestId) -> Stray {
        let mut known = self.0.lock();
        match our_number(id) {
            Some(number) if take(&mut known.own, number) => Stray::Own,
            Some(number) if take(&mut known.given_up, number) => Stray::Late,
            Some(number) if number >= 0 && Some(number) <= known.highest => {
                Stray::Mistake("a second answer to one request")
            }
            _ => Stray::Mistake("an answer to a request that was never made"),
        }
    }
}

fn keep(numbers: &mut VecDeque<i64>, number: i64) {
    if numbers.len() >= MAX {
        numbers.pop_front();
    }
    numbers.push_back(number);
}

fn take(numbers: &mut VecDeque<i64>, number: i64) -> bool {
    let at = numbers.iter().position(|other| *other == number);
    at.and_then(|at| numbers.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    #[test]
    fn an_answer_is_late_once_and_a_mistake_afterwards() {
        let strays = Strays::default();
        let came = |number| strays.came(&NumberOrString::Number(number));
        let (second, never) = ("a second answer to one request", "an answer to a request that was never made");
        assert_eq!(came(0), Stray::Mistake(never));
        strays.sent(0, true);
        strays.sent(1, false);
        strays.gave_up(1);
        assert_eq!((came(0), came(0)), (Stray::Own, Stray::Mistake(second)));
        assert_eq!((came(1), came(1)), (Stray::Late, Stray::Mistake(second)));
        assert_eq!((came(2), came(-1)), (Stray::Mistake(never), Stray::Mistake(never)));
        assert_eq!(strays.came(&NumberOrString::String("x".into())), Stray::Mistake(never));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let strays = Strays::default();
        (0..10_000).for_each(|number| strays.gave_up(number));
        assert_eq!(strays.0.lock().given_up.len(), MAX);
    }
}
