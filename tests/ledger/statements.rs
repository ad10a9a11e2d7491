//! Sealed statements on every store: each has one number, the numbers have no gaps, and what is
//! sealed stays.

use futures_util::future::join_all;
use tempfile::TempDir;
use tollgate::statement::{SealedStatement, StatementMonth};
use tollgate::store::OpenStore;

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::subject::{name, opened};

const ACCOUNTS: [&str; 3] = ["ada", "bob", "cy"];
const MONTHS: [&str; 3] = ["2026-11", "2026-09", "2026-10"];

fn month(text: &str) -> StatementMonth {
    StatementMonth::parse(text).expect("a month")
}

async fn open_accounts(store: &OpenStore) {
    for account in ACCOUNTS {
        store.ledger.open_account(&name(account)).await.expect("an account");
    }
}

/// Seals a statement whose body says who has made it.
async fn seal(store: &OpenStore, account: &str, of: &str, body: &str) -> SealedStatement {
    let sha256 = "0".repeat(64);
    let sealed = store.statements.seal_statement(&name(account), month(of), body, &sha256).await;
    sealed.expect("a statement")
}

async fn listed(store: &OpenStore, account: &str) -> Vec<SealedStatement> {
    store.statements.list_statements(&name(account)).await.expect("statements")
}

/// The stores. A cluster has the numbers and the accounts in different places.
fn urls(folder: &TempDir, server: &RedisServer, cluster: &[RedisServer]) -> [String; 3] {
    let file = format!("sqlite:{}", folder.path().join("ledger.db").display());
    [file, server.fresh_url(), cluster[0].cluster_url()]
}

#[tokio::test]
async fn of_many_that_seal_at_once_the_first_one_wins_and_no_number_is_left_out() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    let cluster = redis_cluster::start();
    for url in urls(&folder, &server, &cluster) {
        let (first, second) = (opened(&url).await, opened(&url).await);
        open_accounts(&first).await;
        let mut sealings = Vec::new();
        for (account, of) in ACCOUNTS.iter().flat_map(|a| MONTHS.iter().map(move |m| (a, m))) {
            sealings.push(seal(&first, account, of, "{\"by\": \"first\"}"));
            sealings.push(seal(&second, account, of, "{\"by\": \"second\"}"));
        }
        let told = join_all(sealings).await;
        for pair in told.chunks(2) {
            assert_eq!(pair[0], pair[1], "{url}: both are told the same");
        }
        let mut numbers: Vec<u64> = told.iter().step_by(2).map(|sealed| sealed.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=9).collect::<Vec<_>>(), "{url}");
        let again = opened(&url).await;
        for account in ACCOUNTS {
            let found = listed(&again, account).await;
            let months: Vec<String> = found.iter().map(|one| one.month.to_string()).collect();
            assert_eq!(months, ["2026-09", "2026-10", "2026-11"], "{url}");
            assert!(found.iter().all(|one| told.contains(one)), "{url}: {found:?}");
        }
        let later = seal(&again, "ada", "2026-11", "another").await;
        assert!(told.contains(&later), "{url}: {later:?}");
        assert_eq!(seal(&again, "ada", "2026-12", "{}").await.number, 10, "{url}");
    }
}

#[tokio::test]
async fn a_statement_is_stored_byte_for_byte_and_only_of_an_account_that_exists() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    let cluster = redis_cluster::start();
    for url in urls(&folder, &server, &cluster) {
        let store = opened(&url).await;
        open_accounts(&store).await;
        let body = r#"{"models":["a b","é","\u0001\"\\"], "n":9007199254740993}  "#;
        let sealed = seal(&store, "ada", "2026-11", body).await;
        assert_eq!((sealed.number, sealed.body.as_str()), (1, body), "{url}");
        let clock = store.statements.statement_clock().await.expect("a time");
        assert!((0..60_000).contains(&(clock - sealed.sealed_at)), "{url}");
        assert_eq!(listed(&store, "ada").await, [sealed], "{url}");
        assert_eq!(listed(&store, "bob").await, [], "{url}");
        let (nobody, sha256) = (name("nobody"), "0".repeat(64));
        let of = month("2026-11");
        let refused = store.statements.seal_statement(&nobody, of, body, &sha256).await;
        let why = refused.expect_err("refused").to_string();
        assert!(why.contains("there is no account 'nobody'"), "{url}: {why}");
        assert_eq!(seal(&store, "bob", "2026-11", "{}").await.number, 2, "{url}");
    }
}

/// A process that was killed between the two steps.
#[tokio::test]
async fn a_statement_without_a_number_gets_one_and_stays_as_it_is() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_accounts(&store).await;
    let record = format!("5 {} first", "1".repeat(64));
    server.command(&["HSET", "tollgate:{ada}:statements", "2026-10", &record]);
    assert_eq!(listed(&store, "ada").await, [], "it is not told yet");
    assert_eq!(seal(&store, "bob", "2026-10", "other").await.number, 1);
    let sealed = seal(&store, "ada", "2026-10", "second").await;
    assert_eq!((sealed.number, sealed.sealed_at, sealed.body.as_str()), (2, 5, "first"));
    assert_eq!(listed(&store, "ada").await, [sealed]);
}

#[tokio::test]
async fn a_file_refuses_to_change_or_delete_a_statement() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("ledger.db");
    let store = opened(&format!("sqlite:{}", path.display())).await;
    open_accounts(&store).await;
    let sealed = seal(&store, "ada", "2026-11", "{}").await;
    let beside = rusqlite::Connection::open(&path).expect("the file");
    for change in ["UPDATE statement SET body = ''", "DELETE FROM statement"] {
        let why = beside.execute_batch(change).expect_err("refused").to_string();
        assert!(why.contains("a sealed statement"), "{change}: {why}");
    }
    assert_eq!(listed(&store, "ada").await, [sealed]);
}
