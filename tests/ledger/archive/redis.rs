//! What only a Redis does: it falls back, its memory is full, and it notes hours by index.

use super::super::redis_server::RedisServer;
use super::super::script::now;
use super::super::subject::{name, opened};
use super::{archive_to, charge, day, fold_all, lines_after, mark, numbers, open_account};
use super::{posted_after, settle_new, state, trim};

/// The base and the lines fall together.
#[tokio::test]
async fn a_server_that_falls_back_has_the_lines_that_had_left_it() {
    let mut server = RedisServer::start();
    let url = server.url();
    let store = opened(&url).await;
    open_account(&store, "ada").await;
    charge(&store, "ada", 0..20).await;
    fold_all(&store, 100).await;
    assert_eq!(archive_to(&store, "ada", 5).await, 5);
    let copy = server.copy();
    charge(&store, "ada", 20..30).await;
    fold_all(&store, 100).await;
    assert_eq!(archive_to(&store, "ada", 25).await, 25);
    assert_eq!(numbers(&lines_after(&store, 0, 100).await), [26, 27, 28, 29, 30]);
    server.fall_back_to(&copy);
    let store = opened(&url).await;
    let known = state(&store, "ada").await;
    assert_eq!((known.lines, known.folded, known.trimmed), (20, 20, 5));
    assert_eq!(known.archived_seq(), 5);
    let lines = lines_after(&store, 0, 100).await;
    assert_eq!(numbers(&lines), (6..=20).collect::<Vec<_>>());
    charge(&store, "ada", 50..52).await;
    assert_eq!(fold_all(&store, 100).await, 2);
    assert_eq!(numbers(&lines_after(&store, 19, 100).await), [20, 21, 22]);
}

#[tokio::test]
async fn lines_go_when_the_memory_is_full() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    charge(&store, "ada", 0..20).await;
    fold_all(&store, 100).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let refused = store.ledger.open_account(&name("bob")).await;
    assert!(refused.is_err(), "it is full: {refused:?}");
    assert!(store.archive.take_archive_turn("a", 60_000).await.expect("an answer"));
    assert!(mark(&store, "ada", 0, &day(1, 12)).await);
    assert_eq!(trim(&store, "ada", 12, 100).await, 12);
    assert_eq!(server.command(&["LLEN", "tollgate:{ada}:journal"]), redis::Value::Int(8));
    assert_eq!(posted_after(&store, 0, 100).await.len(), 8);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

/// The marks of hours have the indexes of before, and the last one that counts stays.
#[tokio::test]
async fn lines_keep_their_hours_when_marks_before_them_go() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    let (hours, hour) = ("tollgate:{ada}:journal-hours", 3_600_000);
    for round in 0..4 {
        charge(&store, "ada", round * 3..round * 3 + 3).await;
        // As if the lines so far were hours old.
        let text = ((now() / hour - 9 + round) * hour).to_string();
        let index = (round * 3).to_string();
        server.command(&["ZREMRANGEBYSCORE", hours, &index, "+inf"]);
        server.command(&["ZADD", hours, &index, &format!("{index} {text}")]);
        server.command(&["HSET", "tollgate:{ada}:account", "journal_hour", &text]);
    }
    fold_all(&store, 100).await;
    let posted = posted_after(&store, 0, 100).await;
    let at_first = now() / hour;
    let ages = |count: usize| -> Vec<Option<i64>> {
        posted
            .iter()
            .take(count)
            .map(|line| line.posted_at.map(|at| at_first - at / hour))
            .collect()
    };
    assert_eq!(ages(4), [9, 9, 9, 8].map(Some));
    for (last, marks) in [(2, 4), (3, 3), (4, 3), (6, 2), (11, 1)] {
        assert_eq!(archive_to(&store, "ada", last).await, last);
        let kept = usize::try_from(last).expect("a number");
        assert_eq!(posted_after(&store, 0, 100).await, posted[kept..], "{last}");
        assert_eq!(posted_after(&store, 11, 100).await, posted[11..], "{last}");
        assert_eq!(server.command(&["ZCARD", hours]), redis::Value::Int(marks), "{last}");
    }
    // The next hour is noted with the number that its first line would have had.
    assert!(matches!(
        settle_new(&store, "late", 1, r#"{"request_id":"late"}"#).await,
        tollgate::ledger::Outcome::Posted { .. }
    ));
    let lines = posted_after(&store, 0, 100).await;
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], posted[11]);
    assert_eq!(lines[1].entry.seq, 13);
    assert!(lines[1].posted_at.is_some_and(|at| now() - at < 2 * hour), "{lines:?}");
}
