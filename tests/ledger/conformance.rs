//! Every table on the pure machine, on SQLite and on Redis, against the one expected output.

use std::path::Path;

use tollgate::ledger::account::Account;

use super::redis_server::RedisServer;
use super::script::{self, Case};
use super::subject::{self, Memory, Stored, Subject};

/// A table that shrank below this lost its checks.
const CHECKS_MIN: usize = 100;

/// All tables, by name.
pub(crate) fn tables() -> Vec<(String, Vec<Case>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ledger/tables");
    let files = std::fs::read_dir(&folder).expect("the folder of tables");
    let mut paths: Vec<_> = files.map(|f| f.expect("a table").path()).collect();
    paths.sort();
    let table = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("a table");
        let cases = script::read(&text).unwrap_or_else(|why| panic!("{}:{why}", path.display()));
        (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), cases)
    };
    paths.iter().map(|path| table(path)).collect()
}

/// Runs one table, by the name of its file.
pub(crate) async fn run_table(subject: &mut dyn Subject, file: &str) {
    let (_, cases) = tables().into_iter().find(|(name, _)| name == file).expect("such a table");
    subject::run(subject, &cases).await.unwrap_or_else(|why| panic!("{file} {why}"));
}

#[tokio::test]
async fn the_pure_machine_does_what_the_tables_say() {
    let mut checks = 0;
    for (file, cases) in tables() {
        let mut subject = Memory::new(Account::default);
        let done = subject::run(&mut subject, &cases).await;
        checks += done.unwrap_or_else(|why| panic!("{file} {why}"));
    }
    assert!(checks >= CHECKS_MIN, "only {checks} checks are left");
}

#[tokio::test]
async fn sqlite_does_what_the_tables_say() {
    for (file, cases) in tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut subject = Stored::sqlite(folder.path()).await;
        let done = subject::run(&mut subject, &cases).await;
        done.unwrap_or_else(|why| panic!("{file} {why}"));
    }
}

#[tokio::test]
async fn redis_does_what_the_tables_say() {
    let server = RedisServer::shared();
    for (file, cases) in tables() {
        let mut subject = Stored::at(&server.fresh_url()).await;
        let done = subject::run(&mut subject, &cases).await;
        done.unwrap_or_else(|why| panic!("{file} {why}"));
    }
}

#[tokio::test]
async fn a_redis_cluster_does_what_the_tables_say() {
    let node = RedisServer::start_cluster();
    let mut subject = Stored::at(&node.cluster_url()).await;
    run_table(&mut subject, "expiry.txt").await;
}

#[tokio::test]
async fn a_master_behind_sentinel_does_what_the_tables_say() {
    let master = RedisServer::start();
    let sentinel = RedisServer::start_sentinel(&master);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port());
    let mut subject = Stored::at(&url).await;
    run_table(&mut subject, "expiry.txt").await;
}
