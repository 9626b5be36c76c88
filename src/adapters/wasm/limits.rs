//! How much a component may use. What is beyond a limit is a fault, never cut (R41; wasm-limits section 6).

use std::time::Duration;

use wasmtime::{Error, ResourceLimiter};

use crate::model::text;
use crate::model::verdict::{Fault, FaultCode};

/// The most memory that any limit may grant, in bytes over all memories of an instance. A slot of the pool has this size.
pub(super) const MAX_MEMORY: usize = 64 * 1024 * 1024;
/// The longest time that any limit may grant.
const MAX_TIME: Duration = Duration::from_secs(1);
/// The most fuel that any limit may grant: that of a script.
const MAX_FUEL: u64 = 20 * FUEL;
/// Fuel of one evaluation.
const FUEL: u64 = 20_000_000;
/// Elements over all tables.
pub(super) const MAX_TABLE_ELEMENTS: usize = 20_000;
/// Tables of one instance.
pub(super) const MAX_TABLES: usize = 20;
/// Memories of one instance: an interpreter's module and its adapters have one each.
pub(super) const MAX_MEMORIES: usize = 4;
/// Core instances of one component.
pub(super) const MAX_CORE_INSTANCES: usize = 200;
/// Functions of one component, over all its modules.
pub(super) const MAX_FUNCTIONS: u64 = 20_000;
/// Handles that live at once.
pub(super) const MAX_HANDLES: usize = 64;
/// The longest read of a guest, in bytes.
pub(super) const MAX_READ: usize = 1024 * 1024;
/// What a guest may pass in one answer or one call of the host, in bytes: the answer's texts, labels and lists together.
pub(super) const MAX_ANSWER: usize = 64 * 1024;
/// The same for a sanitiser, whose patterns and edits are lists.
pub(super) const MAX_SANITISER_ANSWER: usize = 512 * 1024;
/// What a sanitiser may use besides for each byte of an answer, in fuel (R41).
const FUEL_PER_BYTE: u64 = 1000;
/// How long a sanitiser may take besides for each MiB of an answer.
const TIME_PER_MIB: Duration = Duration::from_millis(20);
/// The longest time that a sanitiser may take, whatever the answer's size.
const MAX_SANITISER_TIME: Duration = Duration::from_secs(5);
/// The stack of a guest, in bytes.
pub(super) const MAX_STACK: usize = 512 * 1024;

/// What kind of component it is (`limits.class`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// Compiled from Rust, C or the like: at most 4 MiB.
    #[default]
    Native,
    /// A script with its interpreter: at most 24 MiB.
    Script,
}

impl Class {
    /// Returns the largest component of this class, in bytes.
    #[must_use]
    pub fn max_component(self) -> usize {
        match self {
            Self::Native => 4 * 1024 * 1024,
            Self::Script => 24 * 1024 * 1024,
        }
    }
}

/// The limits of one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// What kind of component it is; decides its largest size.
    pub class: Class,
    /// The time of one evaluation, instantiation included. At most 1 s.
    pub time: Duration,
    /// The fuel of one evaluation, about one unit an instruction. At most 400 million. The work of the host on behalf of the
    /// component has an allowance of the same size.
    pub fuel: u64,
    /// The memory of one instance, in bytes over all its memories. At most 64 MiB.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(Class::Native)
    }
}

impl Limits {
    /// Returns the default limits of a class.
    #[must_use]
    pub fn of(class: Class) -> Self {
        let (time, fuel) = match class {
            Class::Native => (50, FUEL),
            Class::Script => (100, 20 * FUEL),
        };
        Self { class, time: Duration::from_millis(time), fuel, memory: MAX_MEMORY }
    }

    /// Refuses limits of zero and limits above the hard caps.
    ///
    /// # Errors
    /// A `settings` fault that names the limit, its value and the cap.
    pub fn check(&self) -> Result<(), Fault> {
        let bad = |name, value: String, cap: String| {
            Err(Fault::new(FaultCode::Settings, format!("the limit `{name}` of {value} is not between 1 and {cap}")))
        };
        if self.time < Duration::from_millis(1) || self.time > MAX_TIME {
            return bad("time", text::seconds(self.time), text::seconds(MAX_TIME));
        }
        if self.fuel == 0 || self.fuel > MAX_FUEL {
            return bad("fuel", self.fuel.to_string(), MAX_FUEL.to_string());
        }
        if self.memory == 0 || self.memory > MAX_MEMORY {
            return bad("memory", format!("{} bytes", self.memory), format!("{MAX_MEMORY} bytes"));
        }
        Ok(())
    }
}

/// What one evaluation may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) time: Duration,
    pub(super) fuel: u64,
    pub(super) memory: usize,
    /// What it may pass to the host at once, in bytes.
    pub(super) answer: usize,
}

impl Budget {
    /// The budget of a decision about a call or a tool.
    pub(super) fn deciding(limits: &Limits) -> Self {
        Self { time: limits.time, fuel: limits.fuel, memory: limits.memory, answer: MAX_ANSWER }
    }

    /// The budget of a look at an answer with so many bytes: more for a longer one (R41).
    pub(super) fn sanitising(limits: &Limits, bytes: usize) -> Self {
        let scripts = match limits.class {
            Class::Native => 1,
            Class::Script => 20,
        };
        let per_mib = (TIME_PER_MIB * scripts).mul_f64(bytes as f64 / 1_048_576.0);
        Self {
            time: (limits.time + per_mib).min(MAX_SANITISER_TIME),
            fuel: limits.fuel.saturating_add(FUEL_PER_BYTE.saturating_mul(bytes as u64)),
            answer: MAX_SANITISER_ANSWER,
            ..Self::deciding(limits)
        }
    }
}

/// What one instance has taken; refuses growth beyond the limits by a trap.
///
/// A refusal that the guest could see as a failed `memory.grow` would let it go on in a state that nobody tested.
#[derive(Debug)]
pub(super) struct Caps {
    memory_left: usize,
    elements_left: usize,
}

impl Caps {
    /// `memory` is what it may have, in bytes over all memories.
    pub(super) fn new(memory: usize) -> Self {
        Self { memory_left: memory, elements_left: MAX_TABLE_ELEMENTS }
    }
}

/// Takes the growth from what is left.
fn take(left: &mut usize, current: usize, desired: usize, what: &str) -> wasmtime::Result<bool> {
    match left.checked_sub(desired.saturating_sub(current)) {
        Some(rest) => {
            *left = rest;
            Ok(true)
        }
        None => Err(Error::new(Fault::new(
            FaultCode::Memory,
            format!("it asked for {desired} {what} where it has {current} and may take {left} more"),
        ))),
    }
}

fn failed(error: &Error) -> wasmtime::Result<()> {
    Err(Error::new(Fault::new(FaultCode::Memory, super::fault::line(error))))
}

impl ResourceLimiter for Caps {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        take(&mut self.memory_left, current, desired, "bytes of memory")
    }

    fn memory_grow_failed(&mut self, error: Error) -> wasmtime::Result<()> {
        failed(&error)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        take(&mut self.elements_left, current, desired, "table elements")
    }

    fn table_grow_failed(&mut self, error: Error) -> wasmtime::Result<()> {
        failed(&error)
    }

    fn instances(&self) -> usize {
        MAX_CORE_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r41_the_defaults_are_those_of_the_rule() {
        let (native, script) = (Limits::default(), Limits::of(Class::Script));
        assert_eq!((native.fuel, native.time.as_millis()), (20_000_000, 50));
        assert_eq!((script.fuel, script.time.as_millis()), (400_000_000, 100));
        assert_eq!((native.class.max_component(), script.class.max_component()), (4 << 20, 24 << 20));
        assert_eq!((native.check(), script.check()), (Ok(()), Ok(())));
    }

    #[test]
    fn a_limit_above_its_cap_is_refused_by_its_name() {
        let limits = Limits::default();
        let cases = [
            ("time", Limits { time: Duration::from_secs(2), ..limits }),
            ("time", Limits { time: Duration::ZERO, ..limits }),
            ("fuel", Limits { fuel: MAX_FUEL + 1, ..limits }),
            ("memory", Limits { memory: MAX_MEMORY + 1, ..limits }),
        ];
        for (name, limits) in cases {
            let fault = limits.check().unwrap_err();
            assert_eq!(fault.code, FaultCode::Settings);
            assert!(fault.detail.contains(&format!("`{name}`")), "{fault}");
        }
    }
}
