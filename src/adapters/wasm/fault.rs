//! What went wrong in the sandbox, as a stable code and one line.
//!
//! The engine's own error carries a backtrace with names that the guest chose; it goes to the debug log only.

use wasmtime::{Error, PoolConcurrencyLimitError, Trap};

use crate::model::verdict::{Fault, FaultCode};

/// The engine's text for an answer beyond `limits::MAX_ANSWER`; its error type is private.
const HOSTCALL_FUEL: &str = "fuel allocated for hostcalls has been exhausted";

/// Returns the fault behind an error of an evaluation.
pub(super) fn of(error: &Error) -> Fault {
    tracing::debug!(error = ?error, "a component failed");
    // A host function or a limiter has already said what is wrong.
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return fault.clone();
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        let (code, detail) = trapped(*trap);
        return Fault::new(code, detail);
    }
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return Fault::new(FaultCode::Budget, "no slot was left in the sandbox's pool");
    }
    let line = line(error);
    if line.contains(HOSTCALL_FUEL) {
        let limit = super::limits::MAX_ANSWER;
        return Fault::new(FaultCode::OutputTooLarge, format!("it passed more than {limit} bytes to the host at once"));
    }
    // What remains are violations of the component ABI: pointers out of bounds, text that is not UTF-8, unknown cases.
    Fault::new(FaultCode::Trap, line)
}

fn trapped(trap: Trap) -> (FaultCode, String) {
    match trap {
        Trap::StackOverflow => (FaultCode::Stack, "it recursed too deep".to_owned()),
        Trap::OutOfFuel => (FaultCode::Fuel, "it used up its fuel".to_owned()),
        Trap::Interrupt => (FaultCode::Deadline, "it used up its time".to_owned()),
        Trap::AllocationTooLarge => (FaultCode::Memory, "it asked for more memory than there is".to_owned()),
        // The enum is the engine's and grows; every other trap is the guest's own fault.
        other => (FaultCode::Trap, other.to_string()),
    }
}

/// Returns the innermost cause on one line.
pub(super) fn line(error: &Error) -> String {
    error.root_cause().to_string().lines().next().unwrap_or_default().to_owned()
}

/// Returns the whole chain of causes on one line; for errors of loading, which carry no backtrace.
pub(super) fn chain(error: &Error) -> String {
    let causes: Vec<_> =
        error.chain().map(|cause| cause.to_string().lines().next().unwrap_or_default().to_owned()).collect();
    causes.join(": ")
}
