//! Every table on SQLite and on Redis, against the one expected output.

use super::redis_server::RedisServer;
use super::subject::{self, Stored, Subject};
use super::tables::tables;

/// Runs one table, by the name of its file.
pub(crate) async fn run_table(subject: &mut dyn Subject, file: &str) {
    let (_, cases) = tables().into_iter().find(|(name, _)| name == file).expect("such a table");
    subject::run(subject, &cases).await.unwrap_or_else(|why| panic!("{file} {why}"));
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
    for table in ["expiry.txt", "budgets.txt"] {
        let node = RedisServer::start_cluster();
        let mut subject = Stored::at(&node.cluster_url()).await;
        run_table(&mut subject, table).await;
    }
}

#[tokio::test]
async fn a_master_behind_sentinel_does_what_the_tables_say() {
    let master = RedisServer::start();
    let sentinel = RedisServer::start_sentinel(&master);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port());
    let mut subject = Stored::at(&url).await;
    run_table(&mut subject, "expiry.txt").await;
}
