//! The description of a world, and how it comes to be.

use std::fmt::Write;
use std::path::Path;

use tempfile::TempDir;
use tollgate::ledger::key::ApiKey;
use tollgate::ledger::{AccountName, KeyRecord, KeyScope, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::sqlite::SqliteStore;

use super::books::{BooksReader, open_ledger};
use super::{ACCOUNT, Gate, Process, Redis, Store, VENDOR_KEY, World};
use crate::ledger::redis_cluster;
use crate::ledger::redis_server::RedisServer;
use crate::ledger::script::now;
use crate::sim::{Protocol, Sim};

const CHAT_VENDORS: [&str; 5] = ["vendor_a", "vendor_b", "vendor_c", "vendor_d", "vendor_e"];
/// The file that vouches for the vendors.
const CERTIFICATE: &str = "vendors.pem";
const FEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/fees");
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/lua-free-rules");

/// What kind of Redis a world has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisKind {
    Server,
    Sentinel,
    Cluster,
    /// Three masters and three replicas.
    ClusterOfSix,
}

impl RedisKind {
    /// One, and its address.
    fn start(self) -> (Redis, String) {
        match self {
            RedisKind::Server => {
                let server = RedisServer::start();
                let url = server.fresh_url();
                (Redis::Own(server, Vec::new()), url)
            }
            RedisKind::Sentinel => {
                let server = RedisServer::start();
                let sentinel = RedisServer::start_sentinel(&server);
                let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port());
                (Redis::Own(server, vec![sentinel]), url)
            }
            RedisKind::Cluster => {
                let server = RedisServer::start_cluster();
                let url = server.cluster_url();
                (Redis::Own(server, Vec::new()), url)
            }
            RedisKind::ClusterOfSix => {
                let mut nodes = redis_cluster::start();
                let url = nodes[0].cluster_url();
                (Redis::Own(nodes.remove(0), nodes), url)
            }
        }
    }
}

/// Which rules a world has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RulesCopy {
    /// Those that are shipped, where they are.
    Shipped,
    /// A copy that the test may change.
    Own,
    /// Such a copy with the fees that stand beside the configuration.
    WithFees,
}

/// See [`World::start`].
pub(crate) struct Builder {
    store: Store,
    own_redis: bool,
    kind: RedisKind,
    rules: RulesCopy,
    plans: String,
    vendors: Vec<(String, Vec<String>)>,
    credit: String,
    conf: String,
    env: Vec<(&'static str, &'static str)>,
    gated: bool,
    requests_max: u32,
    protocol: Protocol,
}

impl Builder {
    pub(super) fn new(store: Store) -> Builder {
        Builder {
            store,
            own_redis: false,
            kind: RedisKind::Server,
            rules: RulesCopy::Shipped,
            plans: String::new(),
            vendors: CHAT_VENDORS.map(|name| (name.to_owned(), vec![String::new()])).into(),
            credit: "5".to_owned(),
            conf: String::new(),
            env: Vec::new(),
            gated: false,
            requests_max: 0,
            protocol: Protocol::Http2,
        }
    }

    /// A vendor with a route `r0`, `r1` … for each of these faults. A route that begins with
    /// `http` is an address.
    pub(crate) fn vendor(mut self, name: &str, routes: &[&str]) -> Builder {
        self.vendors.retain(|(known, _)| known != name);
        self.vendors.push((name.to_owned(), routes.iter().map(|r| (*r).to_owned()).collect()));
        self
    }

    /// What the account begins with, in USD.
    pub(crate) fn credit(mut self, usd: &str) -> Builder {
        usd.clone_into(&mut self.credit);
        self
    }

    /// More configuration, in TOML.
    pub(crate) fn conf(mut self, toml: &str) -> Builder {
        self.conf.push_str(toml);
        self.conf.push('\n');
        self
    }

    /// A setting of the first gateway alone, as a variable in its environment.
    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Builder {
        self.env.push((name, value));
        self
    }

    /// So many calls at a time on each route; 0 for any number.
    pub(crate) fn requests_max(mut self, most: u32) -> Builder {
        self.requests_max = most;
        self
    }

    /// How the vendors are spoken to; as real ones are, over HTTP/2, unless a test says otherwise.
    pub(crate) fn protocol(mut self, protocol: Protocol) -> Builder {
        self.protocol = protocol;
        self
    }

    /// A gate in front of Redis, for the gateways that are sent through it.
    pub(crate) fn gated(mut self) -> Builder {
        self.gated = true;
        self
    }

    /// A Redis that the test may stop.
    pub(crate) fn own_redis(mut self) -> Builder {
        self.own_redis = true;
        self
    }

    /// A Redis of that kind that the test may stop.
    pub(crate) fn redis_kind(mut self, kind: RedisKind) -> Builder {
        self.kind = kind;
        self.own_redis()
    }

    /// Rules that the test may change: a copy in the folder `rules` of the world.
    pub(crate) fn own_rules(mut self) -> Builder {
        if self.rules == RulesCopy::Shipped {
            self.rules = RulesCopy::Own;
        }
        self
    }

    /// Rules that the test may change, with the fees that stand beside the configuration.
    pub(crate) fn fees(mut self) -> Builder {
        self.rules = RulesCopy::WithFees;
        self
    }

    /// Rules that the test may change, which have these plans and no others.
    pub(crate) fn plans(mut self, toml: &str) -> Builder {
        toml.clone_into(&mut self.plans);
        self.own_rules()
    }

    /// Brings it all up: vendors, store, gateway, account and key.
    pub(crate) async fn run(self) -> World {
        let folder = TempDir::new().expect("a folder for the world");
        let sim = Sim::start_on("127.0.0.1:0", self.protocol).await;
        std::fs::write(folder.path().join(CERTIFICATE), sim.certificate()).expect("a certificate");
        let (redis, store) = match (self.store, self.own_redis) {
            (Store::Sqlite, _) => {
                let file = folder.path().join("tollgate.db");
                // As `tollgate init` does, which would be one more process for each world.
                assert_eq!(SqliteStore::create(&file), Ok(true));
                (Redis::None, format!("sqlite:{}", file.display()))
            }
            (Store::Redis, false) => {
                let server = RedisServer::shared();
                let url = server.fresh_url();
                (Redis::Shared(server), url)
            }
            (Store::Redis, true) => self.kind.start(),
        };
        let rules = self.rules(folder.path());
        let conf = self.toml(&sim, folder.path(), &store, &rules);
        std::fs::write(folder.path().join("tollgate.toml"), conf).expect("a configuration");
        let gate = if self.gated { Some(Gate::start(&store).await) } else { None };
        let gateway = Process::start(folder.path(), "gateway", &self.env).await;
        let client = super::process::client(Some(sim.certificate()));
        let key = open_account(&store, &self.credit).await;
        if let Redis::Own(server, _) = &redis {
            // Nobody has waited for it, and it may be killed at once.
            server.has_written();
        }
        let books = (!self.own_redis).then(|| BooksReader::of(store));
        World { sim, key, gateway, gate, folder, redis, books, client }
    }

    fn rules(&self, folder: &Path) -> String {
        if self.rules == RulesCopy::Shipped {
            return RULES.to_owned();
        }
        let own = folder.join("rules");
        std::fs::create_dir(&own).expect("a folder for the rules");
        for file in std::fs::read_dir(RULES).expect("the rules") {
            let file = file.expect("a rules file");
            std::fs::copy(file.path(), own.join(file.file_name())).expect("a copy of the rules");
        }
        for file in
            std::fs::read_dir(FEES).expect("the fees").filter(|_| self.rules == RulesCopy::WithFees)
        {
            let file = file.expect("a file of fees");
            let fees = std::fs::read_to_string(file.path()).expect("fees");
            let path = own.join(file.file_name());
            let rules = std::fs::read_to_string(&path).expect("the rules of a vendor with fees");
            std::fs::write(path, format!("{rules}\n{fees}")).expect("rules with fees");
        }
        if !self.plans.is_empty() {
            std::fs::write(own.join("plans.toml"), format!("{}\n", self.plans)).expect("plans");
        }
        own.display().to_string()
    }

    fn toml(&self, sim: &Sim, folder: &Path, store: &str, rules: &str) -> String {
        let files = folder.join("files").display().to_string();
        // Where no test takes Redis away, nobody waits for its disk either.
        let volatile = self.store == Store::Redis && !self.own_redis;
        let mut toml = format!(
            "[store]\nurl = {store:?}\nallow_volatile = {volatile}\n[files]\n\
             url = \"file:{files}\"\n[rules]\ndir = {rules:?}\n"
        );
        let ca = folder.join(CERTIFICATE).display().to_string();
        let tls = match self.protocol {
            Protocol::Plain => String::new(),
            Protocol::Http1 | Protocol::Http2 => format!(", tls = {{ ca = {ca:?} }}"),
        };
        for (vendor, routes) in &self.vendors {
            let mut rows = String::new();
            for (rank, faults) in routes.iter().enumerate() {
                let is_elsewhere = faults.starts_with("http");
                let base = if is_elsewhere { faults.clone() } else { sim.base_url(vendor, faults) };
                let most = self.requests_max;
                write!(
                    rows,
                    "{{ name = \"r{rank}\", base_url = {base:?}, key = {VENDOR_KEY:?}, \
                     requests_max = {most}{tls} }}, ",
                    tls = if is_elsewhere { "" } else { &tls },
                )
                .expect("a String takes everything");
            }
            write!(toml, "[vendor.{vendor}]\nroutes = [{rows}]\n")
                .expect("a String takes everything");
        }
        toml + &self.with_patience()
    }

    /// The further configuration. The machine may have more to do than it can, and neither a
    /// gateway nor a ledger that is late is what most tests are about. One that a test takes away
    /// is not waited for as long.
    fn with_patience(&self) -> String {
        let ledger_ms = if self.own_redis { "3_000" } else { "10_000" };
        let mut lines = "[timeouts]\n".to_owned();
        for (name, value) in [("shed_lag_ms", "0"), ("ledger_ms", ledger_ms)] {
            if !self.conf.contains(name) {
                writeln!(lines, "{name} = {value}").expect("a String takes everything");
            }
        }
        if self.conf.contains("[timeouts]\n") {
            return self.conf.replacen("[timeouts]\n", &lines, 1);
        }
        format!("{}{lines}", self.conf)
    }
}

/// Does what `tollgate account create --credit` and `tollgate key issue` do, which would be two
/// more processes for each world.
async fn open_account(store: &str, credit: &str) -> String {
    let ledger = open_ledger(store).await;
    let account = AccountName::parse(ACCOUNT).expect("a name");
    assert_eq!(ledger.open_account(&account).await, Ok(true));
    let amount = Money::parse_usd(credit).expect("an amount");
    let payment = Operation::Credit { tx: format!("opening-{ACCOUNT}"), amount };
    assert_eq!(ledger.submit(&account, payment).await, Ok(Outcome::Done));
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).expect("random bits");
    let key = ApiKey::from_random(bits);
    let record = KeyRecord::new(&key, account, now() / 1_000, KeyScope::default());
    ledger.add_key(key.hash(), record).await.expect("a key");
    key.reveal().to_owned()
}
