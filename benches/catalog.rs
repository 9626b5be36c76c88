//! What many tools cost: naming, listing, converting and searching 100, 1,000 and 10,000 of them.
//!
//! ```sh
//! cargo bench --bench catalog              # half a minute, and the building
//! cargo bench --bench catalog -- --quick   # small catalogs only: does it still run?
//! ```
//!
//! Time per tool, the least of some rounds, all sizes in turns; the last column is what a tool costs in the largest catalog
//! against the smallest one. The aim is linear growth: at most 2, because a large catalog does not fit into the caches of
//! the processor. Nothing is asserted but that all tools are there and the right one is found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench that cannot run shall say so")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use portcullis::adapters::clock::SystemClock;
use portcullis::adapters::record::memory::MemoryRecorder;
use portcullis::adapters::store::memory::MemoryGrants;
use portcullis::adapters::store::memory_state::in_memory;
use portcullis::adapters::wasm::Engine;
use portcullis::host::fleet::{BackOff, ServerSpec};
use portcullis::host::listing::Surface;
use portcullis::host::policies::policy_set;
use portcullis::host::session::Session;
use portcullis::host::user::local_caller;
use portcullis::host::{Host, HostParts};
use portcullis::model::digest::Digest;
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::model::posture::PostureLayers;
use portcullis::model::revision::ConnectionId;
use portcullis::model::tool::ServerIdentity;
use portcullis::pipeline::admit::catalog::{Names, ServerView};
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::admit::naming::{self, FlatStyle, NameLimit, Nameable, NamingOptions};
use portcullis::ports::reviewer::NobodyThere;
use portcullis::ports::upstream::{
    Connection, InFlight, ListFailure, Listing, NotSent, OutgoingCall, StartFailure, Upstream, UpstreamEvents,
};
use serde_json::json;

/// The most tools of one server; the host takes at most 2,048.
const PER_SERVER: usize = 1_000;
/// How much a tool may cost in the largest catalog, against the smallest one.
const ALLOWANCE: f64 = 2.0;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (sizes, rounds): (&[usize], usize) = if quick { (&[10, 100], 2) } else { (&[100, 1_000, 10_000], 7) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine = Engine::on_demand().unwrap();
    let houses: Vec<House> = sizes.iter().map(|size| runtime.block_on(House::build(&engine, *size))).collect();
    let mut best = vec![vec![Duration::MAX; sizes.len()]; SERIES.len()];
    for _ in 0..rounds {
        for (at, house) in houses.iter().enumerate() {
            for (series, took) in best.iter_mut().zip(runtime.block_on(house.round())) {
                if let Some(best) = series.get_mut(at) {
                    *best = took.min(*best);
                }
            }
        }
    }
    print(sizes, &best);
    for house in houses {
        runtime.block_on(house.host.shutdown(Duration::ZERO));
    }
}

/// What is measured.
const SERIES: [&str; 6] = [
    "names of both kinds",
    "the list, policies and sanitisers asked",
    "a step, every schema converted",
    "a step again, handlers reused",
    "an index for search",
    "a search among all",
];

fn print(sizes: &[usize], best: &[Vec<Duration>]) {
    let micros = |took: &Duration, tools: usize| took.as_secs_f64() * 1e6 / tools as f64;
    let heads: Vec<String> = sizes.iter().map(|size| format!("{size:>12}")).collect();
    println!("microseconds a tool{:>26}{}   last / first", "", heads.join(""));
    for (name, took) in SERIES.iter().zip(best) {
        let each: Vec<f64> = took.iter().zip(sizes).map(|(took, size)| micros(took, *size)).collect();
        let ratio = each.last().unwrap() / each.first().unwrap();
        let cells: Vec<String> = each.iter().map(|micros| format!("{micros:>12.3}")).collect();
        let judged = if ratio <= ALLOWANCE { "" } else { "   grows faster than the tools" };
        println!("{name:<45}{}   {ratio:>6.2}{judged}", cells.join(""));
    }
}

/// A host of so many tools, and what names are made of.
struct House {
    host: Arc<Host>,
    session: Arc<Session>,
    nameable: Vec<Nameable>,
}

impl House {
    async fn build(engine: &Engine, tools: usize) -> Self {
        let starts = (0..tools).step_by(PER_SERVER);
        let counts: Vec<usize> = starts.map(|start| PER_SERVER.min(tools - start)).collect();
        let mut nameable = Vec::with_capacity(tools);
        let mut servers = BTreeMap::new();
        for (server, count) in counts.iter().enumerate() {
            let name = ServerName::parse(&format!("server-{server}")).unwrap();
            for tool in 0..*count {
                nameable.push(Nameable::ordinary(name.clone(), RawToolName::parse(&tool_name(tool)).unwrap()));
            }
            servers.insert(name.clone(), spec(&name, *count));
        }
        let policies =
            policy_set(engine, Vec::new(), Vec::new(), PostureLayers::default(), Vec::new(), Digest::of(b"bench"));
        let host = Host::start(HostParts {
            policies,
            names: Names {
                model: NamingOptions::default(),
                flat: FlatStyle::default(),
                flat_limit: NameLimit::GATEWAY,
            },
            servers,
            disabled: BTreeMap::new(),
            recorder: Arc::new(MemoryRecorder::new(1)),
            grants: Arc::new(MemoryGrants::default()),
            state: Arc::new(in_memory()),
            clock: Arc::new(SystemClock),
            ask_deadline: None,
        });
        host.fleet().settle_fully().await;
        assert_eq!(host.catalog().current().tools().len(), tools, "not all tools are there");
        let session = Self::open(&host);
        Self { host, session, nameable }
    }

    fn open(host: &Arc<Host>) -> Arc<Session> {
        let session = host.session(local_caller(), Arc::new(NobodyThere));
        session.show_on(Surface::Library(Exposing { search: true, ..Exposing::library() }));
        session
    }

    async fn round(&self) -> [Duration; SERIES.len()] {
        let begun = Instant::now();
        black_box(naming::names(black_box(&self.nameable), &NamingOptions::default()));
        black_box(naming::flat_names(&self.nameable, FlatStyle::default(), NameLimit::GATEWAY));
        let naming = begun.elapsed();

        let (listing, _) = timed(self.session.catalog_now()).await;
        // A session that has taken no step yet converts everything.
        let fresh = Self::open(&self.host);
        fresh.catalog_now().await;
        let (first, step) = timed(fresh.step()).await;
        let step = step.unwrap();
        let (again, _step) = timed(fresh.step()).await;
        let index = Self::open(&self.host);
        let listed = index.catalog_now().await;
        let begun = Instant::now();
        black_box(listed.index());
        let indexing = begun.elapsed();
        let begun = Instant::now();
        let found = fresh.find(&step, "attach a file to the ticket number 7", None).unwrap();
        let searching = begun.elapsed();
        assert_eq!(found.offers.first().unwrap().handler.tool().definition.name().as_str(), tool_name(7));
        [naming, listing, first, again, indexing, searching]
    }
}

async fn timed<T>(future: impl Future<Output = T>) -> (Duration, T) {
    let begun = Instant::now();
    let out = future.await;
    (begun.elapsed(), out)
}

fn tool_name(tool: usize) -> String {
    format!("{}_ticket_{tool}", VERBS[tool % VERBS.len()])
}

const VERBS: [&str; 8] = ["create", "read", "list", "close", "assign", "label", "move", "attach"];

/// A tool of the size that tools have: a sentence or two, and some properties with theirs.
fn definition(tool: usize) -> Arc<str> {
    let verb = VERBS[tool % VERBS.len()];
    let described = |what: &str| json!({ "type": "string", "description": format!("The {what} to {verb}.") });
    json!({
        "name": tool_name(tool),
        "description": format!("Lets you {verb} a file or a comment of the ticket number {tool}. Works for open tickets only."),
        "inputSchema": {
            "type": "object",
            "properties": { "ticket": described("ticket"), "path": described("file"), "note": described("note"),
                "labels": { "type": "array", "items": { "type": "string" } } },
            "required": ["ticket"],
            "additionalProperties": false,
        },
        "annotations": { "readOnlyHint": tool.is_multiple_of(2) },
    })
    .to_string()
    .into()
}

fn spec(name: &ServerName, tools: usize) -> ServerSpec {
    ServerSpec {
        upstream: Arc::new(Canned((0..tools).map(definition).collect())),
        identity: ServerIdentity(Digest::of(name.as_str().as_bytes())),
        launch: Digest::of(name.as_str().as_bytes()),
        config: Digest::of(name.as_str().as_bytes()),
        view: ServerView::embedded(Duration::from_secs(60), false),
        connectors: BTreeMap::new(),
        filter: Arc::new(|_| None),
        required: false,
        startup_timeout: Duration::from_secs(60),
        back_off: BackOff::default(),
    }
}

/// A server that lists its tools and takes no call.
struct Canned(Vec<Arc<str>>);

struct Line(Vec<Arc<str>>);

#[async_trait]
impl Upstream for Canned {
    async fn connect(
        &self,
        _deadline: tokio::time::Instant,
        _events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        Ok(Arc::new(Line(self.0.clone())))
    }
}

#[async_trait]
impl Connection for Line {
    fn id(&self) -> ConnectionId {
        ConnectionId(1)
    }

    fn is_open(&self) -> bool {
        true
    }

    async fn list(&self, _deadline: tokio::time::Instant) -> Result<Listing, ListFailure> {
        Ok(Listing { tools: self.0.clone(), ..Listing::default() })
    }

    async fn hand_over(&self, _call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        Err(NotSent("this server takes no calls".to_owned()))
    }

    async fn close(&self) {}
}
