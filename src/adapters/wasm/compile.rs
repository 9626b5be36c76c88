//! Compiling: in this process, or in a child that has its own bounds and can be ended.
//!
//! Promises: the child gets one component on its input and nothing else, no environment, no key, no descriptor of ours, no
//! argument that anybody outside chose (R36); it ends within its processor time, its memory and its wall clock, and is killed and reaped whatever
//! happens to the caller; what it wrote is bounded. Blocking: for threads that may wait.
//!
//! An embedder has no program that is us, so it compiles in its own process unless it says otherwise.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit};
use wasmtime::component::Component;

use super::cache::Fitted;
use super::engine;
use super::fault;
use super::limits::Class;
use crate::adapters::children;
use crate::model::digest::Digest;
use crate::model::text;
use crate::model::verdict::{Fault, FaultCode};

/// The hidden command of the program that is a compiling child.
pub const COMMAND: &str = "__compile";
/// The largest compiled component, in bytes.
pub(super) const MAX_ARTIFACT: usize = 256 << 20;
/// The longest reason of a child, in bytes.
const MAX_REASON: usize = 2048;
/// The exit code of a child whose output is a reason.
const REFUSED: i32 = 3;
/// How often a child that closed its output is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Where components are compiled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Compiling {
    /// In this process: a hostile component can use its time and memory, within what admission lets through.
    #[default]
    InProcess,
    /// In a child of its own, started as `program __compile …`.
    Child {
        /// This very program; its path.
        program: PathBuf,
        /// The most that one child may use, where that is less than the bounds of the component's class.
        most: Option<Bounds>,
    },
}

/// What a compiling child may use (R41).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Processor time, in seconds over all threads; 0 counts as 1. A wall clock of four times as much holds besides.
    pub seconds: u64,
    /// Memory to work in, in MiB; 0 counts as 1.
    pub mebibytes: u64,
}

impl Bounds {
    /// The bounds of a class, which nothing raises.
    fn of(class: Class) -> Self {
        match class {
            Class::Native => Self { seconds: 10, mebibytes: 512 },
            Class::Script => Self { seconds: 60, mebibytes: 1024 },
        }
    }

    fn at_most(self, other: Self) -> Self {
        let Self { seconds, mebibytes } = self;
        Self { seconds: seconds.min(other.seconds).max(1), mebibytes: mebibytes.min(other.mebibytes).max(1) }
    }
}

impl Compiling {
    /// A child of the program that runs.
    ///
    /// # Errors
    /// The system does not say which program that is.
    pub fn in_child_of_ours() -> std::io::Result<Self> {
        // The link leads to what runs even if another version was installed over it meanwhile.
        let link = PathBuf::from("/proc/self/exe");
        let program = if link.exists() { link } else { std::env::current_exe()? };
        Ok(Self::Child { program, most: None })
    }
}

/// What a compiling child is told: which engine, and how much it may use. Nothing of the component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    pooling: bool,
    class: Class,
    bounds: Bounds,
}

impl Order {
    pub(super) fn new(pooling: bool, class: Class, most: Option<Bounds>) -> Self {
        let bounds = Bounds::of(class);
        Self { pooling, class, bounds: bounds.at_most(most.unwrap_or(bounds)) }
    }

    fn arguments(self) -> [String; 4] {
        let class = match self.class {
            Class::Native => "native",
            Class::Script => "script",
        };
        let engine = if self.pooling { "pooling" } else { "on-demand" };
        [engine.to_owned(), class.to_owned(), self.bounds.seconds.to_string(), self.bounds.mebibytes.to_string()]
    }

    /// Reads an order from the arguments of [`COMMAND`]; `None` for what is none.
    #[must_use]
    pub fn parse(engine: &str, class: &str, most: Bounds) -> Option<Self> {
        let all = [true, false].into_iter().flat_map(|pooling| [Class::Native, Class::Script].map(|c| (pooling, c)));
        all.map(|(pooling, class)| Self::new(pooling, class, Some(most))).find(|order| {
            let [its_engine, its_class, ..] = order.arguments();
            its_engine == engine && its_class == class
        })
    }

    /// Wall clock: a busy machine gives a child a part of its processors only.
    fn wall(self) -> Duration {
        Duration::from_secs(self.bounds.seconds * 4)
    }

    /// Memory to work in, in bytes.
    fn memory(self) -> u64 {
        self.bounds.mebibytes << 20
    }
}

/// Makes components from bytes that were admitted.
pub(super) struct Compiler {
    pub(super) how: Compiling,
    pub(super) cache: Option<Fitted>,
    pub(super) pooling: bool,
}

impl Compiler {
    /// Returns the code of a component: kept, or compiled now. `key` is the digest of `bytes`.
    pub(super) fn component(
        &self,
        engine: &wasmtime::Engine,
        bytes: &[u8],
        key: Digest,
        class: Class,
    ) -> Result<Component, Fault> {
        if let Some(artifact) = self.cache.as_ref().and_then(|cache| cache.get(key)) {
            match deserialize(engine, &artifact) {
                Ok(component) => return Ok(component),
                Err(error) => tracing::warn!(component = %key, %error, "kept code does not fit; compiling it again"),
            }
        }
        if self.how == Compiling::InProcess && self.cache.is_none() {
            return Component::new(engine, bytes).map_err(|e| cannot_compile(&fault::chain(&e)));
        }
        let artifact = self.artifact(engine, bytes, class)?;
        let component = deserialize(engine, &artifact).map_err(|e| cannot_compile(&fault::chain(&e)))?;
        if let Some(cache) = &self.cache {
            cache.put(key, &artifact);
        }
        Ok(component)
    }

    fn artifact(&self, engine: &wasmtime::Engine, bytes: &[u8], class: Class) -> Result<Vec<u8>, Fault> {
        match &self.how {
            Compiling::InProcess => engine.precompile_component(bytes).map_err(|e| cannot_compile(&fault::chain(&e))),
            Compiling::Child { program, most } => {
                let order = Order::new(self.pooling, class, *most);
                let mut command = Command::new(program);
                command.arg(COMMAND).args(order.arguments());
                run(command, bytes, order, order.wall())
            }
        }
    }
}

#[allow(
    unsafe_code,
    reason = "the bytes come from our own compiler: straight out of a child of ours that was given an admitted component, \
              or out of this process, or out of the cache, whose mark over these very bytes was checked in this buffer (R36); \
              no file or layer can supply them, and the engine compares version and settings besides"
)]
fn deserialize(engine: &wasmtime::Engine, artifact: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: see the reason above.
    unsafe { Component::deserialize(engine, artifact) }
}

fn cannot_compile(why: &str) -> Fault {
    Fault::new(FaultCode::Missing, format!("it cannot be compiled: {why}"))
}

fn over_budget(why: &str) -> Fault {
    Fault::new(FaultCode::Budget, format!("compiling it {why}"))
}

/// A child that leads a group of its own. Dropping it kills the group and reaps the child.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> std::io::Result<Self> {
        use std::os::unix::process::CommandExt as _;

        command.env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        children::keep_nothing(&mut command);
        command.spawn().map(Self)
    }

    fn kill(&mut self) {
        if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
            // One that is gone is no error; the child is not reaped yet, so its number is its own.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits for its end until `deadline`, then kills it.
    fn end(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.kill();
            let _ = self.0.wait();
        }
    }
}

/// Gives `bytes` to a child and returns what it writes.
fn run(command: Command, bytes: &[u8], order: Order, wall: Duration) -> Result<Vec<u8>, Fault> {
    let cannot_start = |error: std::io::Error| cannot_compile(&format!("the compiler cannot start: {error}"));
    let deadline = Instant::now() + wall;
    let child = Running::start(command).map_err(cannot_start)?;
    std::thread::scope(|scope| {
        // Dropped before the threads are waited for: with the child gone, neither blocks.
        let mut child = child;
        let pipes = child.0.stdin.take().zip(child.0.stdout.take());
        let (mut input, output) = pipes.ok_or_else(|| cannot_start(std::io::Error::other("it has no pipes")))?;
        let (sender, read) = mpsc::channel();
        let writer = move || {
            // A child that ended before it read everything says why by its status.
            let _ = input.write_all(bytes);
        };
        let reader = move || {
            let mut artifact = Vec::new();
            let most = u64::try_from(MAX_ARTIFACT).unwrap_or(u64::MAX).saturating_add(1);
            let done = output.take(most).read_to_end(&mut artifact).map(|_| artifact);
            let _ = sender.send(done);
        };
        std::thread::Builder::new().spawn_scoped(scope, writer).map_err(cannot_start)?;
        std::thread::Builder::new().spawn_scoped(scope, reader).map_err(cannot_start)?;
        let too_long = || over_budget(&format!("took longer than {}", text::seconds(wall)));
        let output = read.recv_timeout(wall).map_err(|_| too_long())?;
        let output = output.map_err(|error| cannot_compile(&format!("its code could not be read: {error}")))?;
        if output.len() > MAX_ARTIFACT {
            return Err(over_budget(&format!("made more than {MAX_ARTIFACT} bytes of code")));
        }
        let status = child.end(deadline).ok_or_else(too_long)?;
        judge(status, output, order)
    })
}

fn judge(status: ExitStatus, output: Vec<u8>, order: Order) -> Result<Vec<u8>, Fault> {
    use std::os::unix::process::ExitStatusExt as _;

    if status.success() {
        return Ok(output);
    }
    if status.code() == Some(REFUSED) {
        let reason = output.get(..MAX_REASON.min(output.len())).unwrap_or_default();
        return Err(cannot_compile(&text::shown(&String::from_utf8_lossy(reason), MAX_REASON)));
    }
    match status.signal() {
        Some(signal) if signal == Signal::XCPU.as_raw() => {
            Err(over_budget(&format!("used up its {} seconds of processor time", order.bounds.seconds)))
        }
        // What an allocation that fails ends in, or the system when memory is short.
        Some(signal) => {
            let memory = order.bounds.mebibytes;
            Err(over_budget(&format!("was ended by signal {signal}, most likely for want of memory ({memory} MiB)")))
        }
        None => Err(cannot_compile(&format!("the compiler ended with {status}"))),
    }
}

/// Is the compiling child: reads one component from `input`, writes its compiled form to `output`, and returns the exit
/// code. Bounds this whole process first, so it is for a process that does nothing else.
pub fn child(order: Order, mut input: impl Read, mut output: impl Write) -> u8 {
    // Threads that cannot be had and memory that is not there end in panics of the compiler's; what else is running would
    // wait for the one that panicked.
    std::panic::set_hook(Box::new(|_panic| std::process::abort()));
    let done = bound(order).and_then(|()| {
        let most = order.class.max_component();
        let mut bytes = Vec::new();
        let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        input.by_ref().take(limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() > most {
            return Err(format!("it has more than {most} bytes"));
        }
        let engine = engine::compiling(order.pooling).map_err(|e| fault::chain(&e))?;
        engine.precompile_component(&bytes).map_err(|e| fault::chain(&e))
    });
    let (bytes, code) = match done {
        Ok(artifact) => (artifact, 0),
        Err(why) => (why.into_bytes(), REFUSED),
    };
    // Whoever asked has gone: then nobody reads the code either.
    let written = output.write_all(&bytes).and_then(|()| output.flush());
    if written.is_err() { 1 } else { u8::try_from(code).unwrap_or(1) }
}

/// Sets the bounds of this process: it ends with its parent, leaves no memory image, and has so much time and memory.
fn bound(order: Order) -> Result<(), String> {
    let set = |resource, soft: u64, hard: u64| {
        let bound = Rlimit { current: Some(soft), maximum: Some(hard) };
        setrlimit(resource, bound).map_err(|error| format!("its bounds cannot be set: {error}"))
    };
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    set(Resource::Core, 0, 0)?;
    set(Resource::Cpu, order.bounds.seconds, order.bounds.seconds + 1)?;
    set(Resource::Data, order.memory(), order.memory())?;
    // Address space that is reserved and not used, as by threads' heaps, counts here and not there.
    #[cfg(target_os = "linux")]
    set(Resource::As, order.memory() * 8, order.memory() * 8)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order { pooling: true, class: Class::Native, bounds: Bounds { seconds: 10, mebibytes: 512 } };
    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_order_reads_what_it_writes() {
        let little = Bounds { seconds: 1, mebibytes: 96 };
        for (pooling, class, most) in [(true, Class::Native, None), (false, Class::Script, Some(little))] {
            let order = Order::new(pooling, class, most);
            let [engine, class, seconds, mebibytes] = order.arguments();
            let most = Bounds { seconds: seconds.parse().unwrap(), mebibytes: mebibytes.parse().unwrap() };
            assert_eq!(Order::parse(&engine, &class, most), Some(order));
        }
        assert_eq!(Order::parse("pooling", "huge", little), None);
    }

    #[test]
    fn r41_an_order_lowers_the_bounds_of_a_class_and_never_raises_them() {
        let order = |seconds, mebibytes| Order::new(true, Class::Native, Some(Bounds { seconds, mebibytes })).bounds;
        assert_eq!(order(u64::MAX, 1 << 40), Bounds { seconds: 10, mebibytes: 512 });
        assert_eq!(order(0, 0), Bounds { seconds: 1, mebibytes: 1 });
        let script = Order::new(true, Class::Script, None);
        assert_eq!((script.bounds.seconds, script.memory(), script.wall().as_secs()), (60, 1 << 30, 240));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn r36_a_child_gets_no_descriptor_that_we_were_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("given-to-us");
        let file = std::fs::File::create(&path).unwrap();
        // Like one that whoever started us left open for us.
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let open = run(shell("/bin/ls -l /proc/$$/fd"), b"", ORDER, LONG).unwrap();
        let open = String::from_utf8(open).unwrap();
        assert!(open.contains("pipe:") && !open.contains("given-to-us"), "{open}");
    }

    #[test]
    fn r36_a_child_gets_the_component_on_its_input_and_no_environment() {
        let script = "cat; /usr/bin/env | /bin/grep -v -e ^PWD= -e ^SHLVL= -e ^_= -e ^OLDPWD=";
        let script = format!("{script}; exit 0");
        assert_eq!(run(shell(&script), b"bytes", ORDER, LONG), Ok(b"bytes".to_vec()));
    }

    #[test]
    fn r36_the_child_for_an_engine_compiles_for_that_engine() {
        for (pooling, engine) in [(true, engine::Engine::new().unwrap()), (false, engine::Engine::on_demand().unwrap())]
        {
            if engine.is_pooling() == pooling {
                let of_child = engine::fingerprint(&engine::compiling(pooling).unwrap());
                assert_eq!(of_child, engine.fingerprint());
            }
        }
    }

    #[test]
    fn what_a_child_refuses_is_a_fault_with_its_reason_made_harmless() {
        let fault = run(shell("printf 'no\\033[1m good'; exit 3"), b"", ORDER, LONG).unwrap_err();
        assert_eq!(fault.code, FaultCode::Missing);
        assert!(fault.detail.starts_with("it cannot be compiled: no") && !fault.detail.contains('\u{1b}'), "{fault}");
        let fault = run(shell("exit 101"), b"", ORDER, LONG).unwrap_err();
        assert_eq!(fault.code, FaultCode::Missing);
    }

    #[test]
    fn a_child_that_uses_up_its_time_or_memory_is_a_budget_fault() {
        for (signal, word) in [("XCPU", "processor time"), ("ABRT", "memory"), ("KILL", "memory")] {
            let fault = run(shell(&format!("kill -{signal} $$")), b"", ORDER, LONG).unwrap_err();
            assert_eq!(fault.code, FaultCode::Budget);
            assert!(fault.detail.contains(word), "{fault}");
        }
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_and_its_group_with_it() {
        // The grandchild holds the output open: only when it is dead too can the reader end.
        let script = "sleep 1000 & wait";
        let fault = run(shell(script), &[0; 1 << 20], ORDER, Duration::from_millis(20)).unwrap_err();
        assert_eq!(fault.code, FaultCode::Budget);
        let fault = run(shell("exec >&-; sleep 1000"), b"", ORDER, Duration::from_millis(20)).unwrap_err();
        assert_eq!(fault.code, FaultCode::Budget);
    }

    #[test]
    fn a_program_that_is_not_there_is_a_fault() {
        let fault = run(Command::new("/nonexistent/portcullis"), b"", ORDER, LONG).unwrap_err();
        assert!(fault.detail.contains("the compiler cannot start"), "{fault}");
    }
}
