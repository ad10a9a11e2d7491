//! A cluster of the tests' own: three masters, and a replica of each.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::redis_server::{RedisServer, free_port};

/// A cluster that has not come to an agreement by then never will.
const PATIENCE: Duration = Duration::from_secs(60);
/// Slots that each of the masters begins with.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];
/// One that says nothing for two seconds is given up by the others.
const SETTINGS: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "2000",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];

/// The masters, then their replicas in the same order.
pub(crate) fn start() -> Vec<RedisServer> {
    let nodes: Vec<_> = (0..6).map(|_| RedisServer::start_with(&SETTINGS)).collect();
    let ports: Vec<_> = nodes.iter().map(RedisServer::port).collect();
    joined(nodes, &ports)
}

/// The same, where all speak TLS with each other, with these settings; and their ports for that.
pub(crate) fn start_over_tls(settings: &[&str]) -> (Vec<RedisServer>, Vec<u16>) {
    let ports: Vec<_> = (0..6).map(|_| free_port()).collect();
    let started = |port: &u16| {
        let port = port.to_string();
        let own = ["--tls-port", &port, "--tls-cluster", "yes", "--tls-replication", "yes"];
        RedisServer::start_with(&[&SETTINGS[..], &own, settings].concat())
    };
    let nodes = ports.iter().map(started).collect();
    (joined(nodes, &ports), ports)
}

/// What finds each other at these ports.
fn joined(nodes: Vec<RedisServer>, ports: &[u16]) -> Vec<RedisServer> {
    for (epoch, node) in nodes.iter().enumerate() {
        node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(epoch + 1).to_string()]);
    }
    for ((first, last), node) in SLOTS.iter().zip(&nodes) {
        node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
    }
    for port in &ports[1..] {
        nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port.to_string()]);
    }
    until("they know each other", || {
        nodes.iter().all(|node| says(node, &["CLUSTER", "INFO"], "cluster_known_nodes:6"))
    });
    for (master, replica) in nodes.iter().zip(&nodes[3..]) {
        let id = id(master);
        // It may not know yet that the other one is a master.
        until("a replica has its master", || {
            replica.try_command(&["CLUSTER", "REPLICATE", &id]).is_ok()
        });
    }
    // A replica that is online gets nothing before its first acknowledgement, up to a second later.
    let has_acknowledged =
        |master: &RedisServer| !says(master, &["INFO", "replication"], "state=online,offset=0,");
    until("the cluster is whole", || {
        let replicas = &nodes[3..];
        nodes.iter().all(|node| says(node, &["CLUSTER", "INFO"], "cluster_state:ok"))
            && replicas.iter().all(|one| says(one, &["INFO"], "master_link_status:up"))
            && nodes[..3].iter().all(|one| says(one, &["INFO"], "state=online"))
            && nodes[..3].iter().all(has_acknowledged)
    });
    nodes
}

/// The name that the other nodes know a node by.
pub(crate) fn id(node: &RedisServer) -> String {
    match node.command(&["CLUSTER", "MYID"]) {
        redis::Value::BulkString(id) => String::from_utf8(id).expect("a name"),
        other => panic!("{other:?}"),
    }
}

/// Whether it is a master.
pub(crate) fn is_master(node: &RedisServer) -> bool {
    says(node, &["INFO", "replication"], "role:master")
}

/// Whether a node says this when it is asked that.
pub(crate) fn says(node: &RedisServer, asked: &[&str], words: &str) -> bool {
    node.try_command(asked).is_ok_and(|told| format!("{told:?}").contains(words))
}

/// A replica takes its master's place, which goes on as its replica.
pub(crate) fn fail_over_to(replica: &RedisServer) {
    // It must have been told of all others first.
    until("the replica takes over", || {
        let _ = replica.try_command(&["CLUSTER", "FAILOVER"]);
        sleep(Duration::from_millis(100));
        is_master(replica)
    });
}

/// Moves all slots of a master, and what is in them, to another one.
pub(crate) fn empty(nodes: &[RedisServer], from: usize, to: usize) {
    let [source, target] = [from, to].map(|place| id(&nodes[place]));
    let slots = SLOTS[from].0..=SLOTS[from].1;
    let port = nodes[to].port().to_string();
    let set = |pipe: &mut redis::Pipeline, slot: u16, words: &[&str]| {
        pipe.cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(words).ignore();
    };
    for (place, words) in [(to, ["IMPORTING", &source]), (from, ["MIGRATING", &target])] {
        let mut pipe = redis::pipe();
        slots.clone().for_each(|slot| set(&mut pipe, slot, &words));
        let () = pipe.query(&mut nodes[place].connection()).expect("slots on their way");
    }
    let mut connection = nodes[from].connection();
    let mut pipe = redis::pipe();
    slots.clone().for_each(|slot| {
        pipe.cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(1_000);
    });
    let keys: Vec<Vec<String>> = pipe.query(&mut connection).expect("keys");
    for keys in keys.iter().filter(|keys| !keys.is_empty()) {
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(&port).arg("").arg(0).arg(5_000).arg("KEYS").arg(keys);
        let _: String = migrate.query(&mut connection).expect("they move");
    }
    // The others hear of it, and the source makes itself a replica when the last one has gone.
    let mut pipe = redis::pipe();
    slots.clone().for_each(|slot| set(&mut pipe, slot, &["NODE", &target]));
    let moved: redis::RedisResult<()> = pipe.query(&mut nodes[to].connection());
    moved.unwrap_or_else(|why| panic!("{:.200}", why.to_string()));
}

/// Waits for something.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(Duration::from_millis(20));
    }
}
