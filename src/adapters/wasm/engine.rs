//! What all components share: the engine, its memory pool, the linker, the ticker and the workers.
//!
//! Settings and their figures: wasm-limits sections 2 and 6. Anything that makes an answer depend on the machine is off.

use std::collections::HashMap;
use std::hash::{Hash as _, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, Strategy};

use super::bindings::TRACKS;
use super::cache::Cache;
use super::compile::{Compiler, Compiling};
use super::limits;
use super::load::Compiled;
use super::patterns::PatternSets;
use super::pool::Pool;
use super::run::Component;
use super::state::State;
use super::ticker::Ticker;
use crate::model::digest::Digest;

/// Address space for one memory: with it, compiled code needs no bounds checks.
const RESERVATION: u64 = 4 << 30;
/// Instances that may live at once; never fewer than there are workers.
const SLOTS: u32 = 64;

/// The sandbox. Cheap to clone; its threads end with the last clone and the last component.
#[derive(Clone)]
pub struct Engine(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) engine: wasmtime::Engine,
    pub(super) linker: Linker<State>,
    pub(super) ticker: Ticker,
    pub(super) pool: Pool,
    /// The next component's number.
    pub(super) numbers: AtomicU64,
    /// Compiled code by digest, shared by all layers and tenants. Held while compiling, so that one component compiles at a
    /// time, on all cores.
    pub(super) compiled: Mutex<HashMap<Digest, Weak<Compiled>>>,
    /// Admitted components by all that they are made of, so that a layer that is read again gets the same ones.
    pub(super) components: Mutex<HashMap<Digest, Weak<Component>>>,
    /// What guests search with, by tenant.
    pub(super) patterns: Arc<PatternSets>,
    pub(super) compiler: Compiler,
    pooling: bool,
    fingerprint: Digest,
}

/// How an engine gets at compiled code. Default: it compiles in this process and keeps nothing.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where components are compiled.
    pub compiling: Compiling,
    /// Where compiled code is kept.
    pub cache: Option<Cache>,
}

/// Why there is no sandbox. Without one every component is a fault.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This machine cannot run the compiled code.
    #[error("the WebAssembly engine cannot start: {0}")]
    Engine(String),
    /// A thread could not be started.
    #[error("a thread for policies cannot start")]
    Thread(#[source] std::io::Error),
}

impl Engine {
    /// Starts an engine with a memory pool; where the address space is too small for one, like [`Engine::on_demand`].
    ///
    /// # Errors
    /// [`EngineError`] if neither can start.
    pub fn new() -> Result<Self, EngineError> {
        Self::with_options(Options::default())
    }

    /// Starts an engine like [`Engine::new`], with these options.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot start.
    pub fn with_options(options: Options) -> Result<Self, EngineError> {
        let workers = workers();
        match wasmtime::Engine::new(&pooling(workers)) {
            Ok(engine) => Self::with(engine, workers, true, options),
            Err(error) => {
                tracing::warn!(reason = %super::fault::line(&error), "no memory pool for policies, they will be slower");
                Self::without_pool(options)
            }
        }
    }

    /// Starts an engine that takes memory when a component needs it: little address space, a slower start for each call.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot start.
    pub fn on_demand() -> Result<Self, EngineError> {
        Self::without_pool(Options::default())
    }

    fn without_pool(options: Options) -> Result<Self, EngineError> {
        let engine = wasmtime::Engine::new(&on_demand()).map_err(|e| EngineError::Engine(super::fault::line(&e)))?;
        Self::with(engine, workers(), false, options)
    }

    /// Returns whether the engine has a memory pool.
    #[must_use]
    pub fn is_pooling(&self) -> bool {
        self.0.pooling
    }

    /// Returns the digest of all that decides what a component's code becomes and what its fuel counts: this host's version,
    /// the engine's, and its settings. Equal fuel is promised under an equal one only (R35).
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        self.0.fingerprint
    }

    fn with(engine: wasmtime::Engine, workers: usize, pooling: bool, options: Options) -> Result<Self, EngineError> {
        let mut linker = Linker::new(&engine);
        for track in TRACKS {
            (track.link)(&mut linker).map_err(|e| EngineError::Engine(super::fault::line(&e)))?;
        }
        let ticker = Ticker::start(engine.clone()).map_err(EngineError::Thread)?;
        let pool = Pool::start(workers).map_err(EngineError::Thread)?;
        let compiled = Mutex::new(HashMap::new());
        let fingerprint = fingerprint(&engine);
        let cache = options.cache.map(|cache| cache.fitted(fingerprint));
        let compiler = Compiler { how: options.compiling, cache, pooling };
        Ok(Self(Arc::new(Shared {
            engine,
            linker,
            ticker,
            pool,
            numbers: AtomicU64::default(),
            compiled,
            components: Mutex::default(),
            patterns: Arc::default(),
            compiler,
            pooling,
            fingerprint,
        })))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("pooling", &self.0.pooling).finish_non_exhaustive()
    }
}

/// An engine that makes the same code as the one with a memory pool, or the one without, and runs none.
pub(super) fn compiling(pooling: bool) -> wasmtime::Result<wasmtime::Engine> {
    let mut config = if pooling { reserving() } else { on_demand() };
    config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    wasmtime::Engine::new(&config)
}

pub(super) fn fingerprint(engine: &wasmtime::Engine) -> Digest {
    /// Takes what is hashed as it comes; the digest is over all of it.
    struct Bytes(Vec<u8>);

    impl Hasher for Bytes {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    let mut hashed = Bytes(env!("CARGO_PKG_VERSION").as_bytes().to_vec());
    engine.precompile_compatibility_hash().hash(&mut hashed);
    Digest::of(&hashed.0)
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(SLOTS as usize / 2)
}

fn common() -> Config {
    let mut config = Config::new();
    config.strategy(Strategy::Cranelift).max_wasm_stack(limits::MAX_STACK);
    // Fuel decides, equally on every machine; the epoch is the safety net.
    config.consume_fuel(true).epoch_interruption(true);
    // An answer may not depend on the processor.
    config.cranelift_nan_canonicalization(true).wasm_relaxed_simd(false);
    // What no policy needs and past advisories were about (wasm-limits section 5).
    config.wasm_memory64(false).wasm_multi_memory(false).memory_init_cow(true);
    config
}

fn pooling(workers: usize) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(SLOTS)
        .total_memories(SLOTS * 4)
        .total_tables(SLOTS * 4)
        .max_core_instances_per_component(limits::MAX_CORE_INSTANCES as u32)
        .max_memories_per_component(limits::MAX_MEMORIES as u32)
        .max_tables_per_component(limits::MAX_TABLES as u32)
        .max_tables_per_module(limits::MAX_TABLES as u32)
        .table_elements(limits::MAX_TABLE_ELEMENTS)
        .max_memory_size(limits::MAX_MEMORY)
        .max_unused_warm_slots(u32::try_from(workers).unwrap_or(SLOTS).saturating_mul(4));
    // Without the scan, resetting a kept memory costs as much as its size, so less is kept.
    let scan = PoolingAllocationConfig::is_pagemap_scan_available();
    pool.pagemap_scan(if scan { Enabled::Yes } else { Enabled::No });
    // The longest text that a guest can read at once, its arena and its stack stay: what is given back to the system is taken again
    // page by page, with a fault for each.
    let kept = if scan { limits::MAX_READ + (512 << 10) } else { 512 << 10 };
    pool.linear_memory_keep_resident(kept);
    // Giving a table back to the system interrupts all other cores, for what it takes no time to clear.
    pool.table_keep_resident(limits::MAX_TABLE_ELEMENTS * size_of::<usize>());
    let mut config = reserving();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// What of the memory pool shows in compiled code.
fn reserving() -> Config {
    let mut config = common();
    config.memory_reservation(RESERVATION);
    config
}

fn on_demand() -> Config {
    let mut config = common();
    config.memory_reservation(limits::MAX_MEMORY as u64).memory_guard_size(64 << 10);
    config.memory_reservation_for_growth(0).allocation_strategy(InstanceAllocationStrategy::OnDemand);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r35_engines_that_compile_alike_have_one_fingerprint_and_others_another() {
        let (one, two, other) = (Engine::new().unwrap(), Engine::new().unwrap(), Engine::on_demand().unwrap());
        assert_eq!(one.fingerprint(), two.fingerprint());
        assert_eq!(one.is_pooling(), one.fingerprint() != other.fingerprint());
    }
}
