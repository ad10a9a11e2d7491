//! What is left when a node dies between two commands, when Redis is full, and when SQLite cannot
//! write.

use redis::{FromRedisValue, Value};
use rusqlite::Connection;
use tollgate::jobs::Job;

use super::*;

const DUE: &str = "tollgate:{:videos}:due";
const VERSIONS: &str = "tollgate:{:videos}:versions";
const QUEUED: &str = "tollgate:{:videos}:queued";
const IN_PROGRESS: &str = "tollgate:{:videos}:in_progress";
/// Much later than any test lives, in unix ms.
const FAR: &str = "99999999999999";

/// A Redis, and a hand in it.
struct Hand {
    nodes: [OpenStore; 2],
    account: AccountName,
    connection: redis::Connection,
}

impl Hand {
    async fn on(server: &RedisServer) -> Hand {
        let url = server.fresh_url();
        let nodes = two(&url).await;
        let account = funded(&*nodes[0].ledger, "ada", 100).await;
        let client = redis::Client::open(url).expect("an address");
        Hand { nodes, account, connection: client.get_connection().expect("a connection") }
    }

    fn queue(&self) -> &dyn JobQueue {
        &*self.nodes[0].queue
    }

    fn says<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let asked = redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection);
        asked.unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    fn does(&mut self, words: &[&str]) {
        let _: Value = self.says(words);
    }

    /// Runs a script of the store's, as if a node did that had been asleep until now.
    fn runs(&mut self, parts: &[&str], keys: &[&str], args: &[&str]) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/scripts");
        let part = |part: &&str| {
            let path = folder.join(format!("{part}.lua"));
            std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
        };
        let text = format!("#!lua\n{}", parts.iter().map(part).collect::<String>());
        let count = keys.len().to_string();
        self.says(&[&["EVAL", &text, &count], keys, args].concat())
    }

    /// When the index looks at a job next; `None` if it does not know it.
    fn look(&mut self, member: &str) -> Option<f64> {
        self.says(&["ZSCORE", DUE, member])
    }
}

#[tokio::test]
async fn a_job_that_was_announced_and_never_placed_is_forgotten_after_a_while() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    hand.does(&["ZADD", DUE, FAR, "ada soon"]);
    hand.does(&["ZADD", DUE, "1", "ada ghost", "2", "nonsense", "3", "no/name id", "4", ""]);
    placed(hand.queue(), &hand.account, &["a"]).await;
    assert_eq!(ids(&claim_all(hand.queue()).await), ["a"]);
    assert_eq!(hand.says::<u64>(&["ZCARD", DUE]), 2);
    assert!(hand.look("ada soon").is_some());
}

#[tokio::test]
async fn a_job_whose_place_was_never_noted_is_found_when_it_was_announced() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a"]).await;
    // As if the node had died after it was placed.
    hand.does(&["HDEL", VERSIONS, "ada a"]);
    hand.does(&["SREM", QUEUED, "ada a"]);
    hand.does(&["ZADD", DUE, FAR, "ada a"]);
    assert_eq!(claim_all(hand.queue()).await, []);
    // Somebody repeats the order,
    placed(hand.queue(), &hand.account, &["a"]).await;
    assert_eq!(counts(hand.queue()).await, [1, 0, 0, 0]);
    // or its time has come.
    hand.does(&["HDEL", VERSIONS, "ada a"]);
    hand.does(&["SREM", QUEUED, "ada a"]);
    assert_eq!(ids(&claim_all(hand.queue()).await), ["a"]);
    assert_eq!(counts(hand.queue()).await, [1, 0, 0, 0]);
}

#[tokio::test]
async fn an_index_that_lags_behind_a_claim_gives_the_job_to_nobody_else() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a", "b"]).await;
    let mut claims = claim_all(hand.queue()).await;
    let lease_end = hand.look("ada a").expect("a time");
    // As if the node had died after its claim, and after that lagged behind a save.
    hand.does(&["ZADD", DUE, "5", "ada a"]);
    hand.does(&["HSET", VERSIONS, "ada a", "1"]);
    assert_eq!(claim_all(&*hand.nodes[1].queue).await, []);
    assert_eq!(hand.look("ada a"), Some(lease_end));
    let mut a = claims.remove(0);
    a.job.stage = stage(JobStatus::InProgress);
    assert!(
        save(hand.queue(), &mut a, ClaimUpdate { due_ms: Some(LEASE_MS), forget_body: true }).await
    );
    hand.does(&["ZADD", DUE, "5", "ada a"]);
    hand.does(&["SMOVE", IN_PROGRESS, QUEUED, "ada a"]);
    assert_eq!(counts(hand.queue()).await, [2, 0, 0, 0]);
    assert_eq!(claim_all(&*hand.nodes[1].queue).await, []);
    assert_eq!(counts(hand.queue()).await, [1, 1, 0, 0]);
    assert!(hand.look("ada a").expect("a time") > 1e12);
}

#[tokio::test]
async fn a_note_that_comes_late_changes_nothing() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a"]).await;
    let before = hand.look("ada a");
    // Something newer is noted already: the note of this claim is the late one.
    hand.does(&["HSET", VERSIONS, "ada a", "9000000000000000"]);
    let claim = claim_one(hand.queue(), LEASE_MS).await;
    assert_eq!(hand.look("ada a"), before);
    assert_eq!(claim_all(&*hand.nodes[1].queue).await, [], "the record says whose it is");
    assert_eq!(hand.queue().remove_job(&claim).await, Ok(true));
    assert_eq!(found(hand.queue(), &hand.account, "a").await, None);
}

#[tokio::test]
async fn a_removed_job_that_the_index_still_has_is_forgotten() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a"]).await;
    let claim = claim_one(hand.queue(), LEASE_MS).await;
    assert_eq!(hand.queue().remove_job(&claim).await, Ok(true));
    hand.does(&["ZADD", DUE, "5", "ada a"]);
    hand.does(&["HSET", VERSIONS, "ada a", "7"]);
    hand.does(&["SADD", QUEUED, "ada a"]);
    assert_eq!(counts(hand.queue()).await, [1, 0, 0, 0]);
    assert_eq!(claim_all(hand.queue()).await, []);
    assert_eq!(counts(hand.queue()).await, [0; 4]);
    let left: Vec<String> = hand.says(&["KEYS", "*video*"]);
    assert_eq!(left, [""; 0]);
}

#[tokio::test]
async fn what_was_announced_long_ago_is_not_placed_any_more() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    // The last is what all of them begin with.
    let keys = "account hold:a open video:a video-body:a video-keys videos videos-open ";
    let keys: Vec<_> = keys.split(' ').map(|key| format!("tollgate:{{ada}}:{key}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let parts = [
        "prelude",
        "allotments/amounts",
        "lots",
        "windows",
        "allotments/recall",
        "rates",
        "places",
        "holding",
        "videos/record",
        "storage/prelude",
        "videos/place",
    ];
    let before = hand.says::<u64>(&["DBSIZE"]);
    let mut args = ["a", "10", "10", "60000", "1", "9", "k", "queued", "{}", "body", "", ""];
    assert_eq!(hand.runs(&parts, &keys, &args), ["late"]);
    assert_eq!(hand.says::<u64>(&["DBSIZE"]), before);
    assert_eq!(balances(&*hand.nodes[0].ledger, &hand.account).await.held, Money::ZERO);
    args[4] = FAR;
    assert_eq!(hand.runs(&parts, &keys, &args)[0], "placed");
    // Nor is anything deleted so late.
    let (parts, keys) = (["prelude", "videos/record", "videos/delete"], [keys[3], keys[6]]);
    assert_eq!(hand.runs(&parts, &keys, &["a", "1"]), ["late"]);
    assert_eq!(hand.says::<u64>(&["ZCARD", keys[1]]), 1);
}

#[tokio::test]
async fn whoever_looked_in_vain_drops_nothing_that_was_announced_since() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    let status = |status: JobStatus| format!("tollgate:{{:videos}}:{}", status.name());
    let by_status = JobStatus::ALL.map(status);
    let mut keys = vec![DUE, VERSIONS];
    keys.extend(by_status.iter().map(String::as_str));
    let announce = ["prelude", "videos/index", "videos/index_add"];
    let drop = ["prelude", "videos/index", "videos/index_remove"];
    hand.does(&["ZADD", DUE, "5", "ada a"]);
    let again = hand.runs(&announce, &keys, &["ada a", "60000", "30000"]);
    assert_eq!(again[1], "", "somebody else announced it first");
    assert_eq!(hand.runs(&drop, &keys, &["ada a", "5"]), ["kept"]);
    // However many announce it at once, whoever was first does not take it back from the others.
    let first = hand.runs(&announce, &keys, &["ada b", "60000", "30000"]);
    for _ in 0..3 {
        hand.runs(&announce, &keys, &["ada b", "60000", "30000"]);
        assert_eq!(hand.runs(&drop, &keys, &["ada b", &first[1]]), ["kept"]);
    }
    let alone = hand.runs(&announce, &keys, &["ada c", "60000", "30000"]);
    assert_eq!(hand.runs(&drop, &keys, &["ada c", &alone[1]]), ["dropped"]);
    assert_eq!(hand.says::<u64>(&["ZCARD", DUE]), 2);
}

/// It comes from a node that looked at the job before it was removed, and was slow since.
#[tokio::test]
async fn a_note_that_comes_after_the_end_of_a_job_does_not_bring_it_back() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a"]).await;
    let claim = claim_one(hand.queue(), LEASE_MS).await;
    let before: String = hand.says(&["HGET", VERSIONS, "ada a"]);
    assert_eq!(hand.queue().remove_job(&claim).await, Ok(true));
    let after: String = hand.says(&["HGET", VERSIONS, "ada a"]);
    assert!(after.parse::<u64>().expect("a number") > before.parse().expect("a number"));
    assert_eq!(counts(hand.queue()).await, [0; 4]);
    // A minute later nothing is left.
    hand.does(&["ZADD", DUE, "5", "ada a"]);
    assert_eq!(claim_all(hand.queue()).await, []);
    assert_eq!(hand.says::<Vec<String>>(&["KEYS", "*video*"]), [""; 0]);
}

#[tokio::test]
async fn a_deletion_that_was_never_noted_is_noted_when_it_is_repeated() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a", "b"]).await;
    for claim in claim_all(hand.queue()).await {
        moved(hand.queue(), claim, JobStatus::Completed, LEASE_MS).await;
    }
    assert!(hand.queue().delete_job(&hand.account, "a").await.expect("an answer").is_some());
    hand.does(&["ZADD", DUE, FAR, "ada a"]);
    assert_eq!(claim_all(hand.queue()).await, []);
    assert_eq!(hand.queue().delete_job(&hand.account, "a").await, Ok(None));
    assert!(claim_one(hand.queue(), LEASE_MS).await.deleted);
    // A deletion is announced: a full minute before the lease of `b` ends somebody looks.
    assert_eq!(hand.queue().delete_job(&hand.account, "nobody").await, Ok(None));
    assert_eq!(hand.says::<u64>(&["ZCARD", DUE]), 2);
}

/// A server of a cluster may come back with less than it acknowledged.
#[tokio::test]
async fn jobs_that_the_index_has_lost_are_looked_at_within_a_minute() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a", "b", "c"]).await;
    for claim in claim_all(hand.queue()).await {
        let (status, due_ms) = match claim.job.id.as_str() {
            "a" => (JobStatus::Queued, 0),
            "b" => (JobStatus::InProgress, 0),
            _ => (JobStatus::Completed, LEASE_MS),
        };
        moved(hand.queue(), claim, status, due_ms).await;
    }
    hand.does(&["DEL", DUE, VERSIONS, QUEUED, IN_PROGRESS]);
    // Each node walks by itself, and this one has just begun.
    assert_eq!(claim_all(&*hand.nodes[1].queue).await, []);
    let looks = [hand.look("ada a"), hand.look("ada b")];
    assert!(looks.iter().all(|look| look.is_some_and(|look| look < 9e12)), "{looks:?}");
    hand.does(&["ZADD", DUE, "1", "ada a", "1", "ada b"]);
    let mut claims = claim_all(hand.queue()).await;
    claims.sort_by_key(|claim| claim.job.id.clone());
    assert_eq!(ids(&claims), ["a", "b"]);
    assert_eq!(counts(hand.queue()).await, [1, 1, 1, 0]);
}

#[tokio::test]
async fn a_refused_order_leaves_no_trace_unless_somebody_else_announced_it() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    let poor = funded(&*hand.nodes[0].ledger, "poor", COST - 1).await;
    let keys = hand.says::<u64>(&["DBSIZE"]);
    let refused = place(hand.queue(), keyed(&poor, "a", "k")).await;
    assert_eq!(refused, PlaceResult::Insufficient(nano(COST - 1)));
    assert_eq!(place(hand.queue(), order(&name("nobody"), "a")).await, PlaceResult::NoAccount);
    assert_eq!(hand.says::<u64>(&["DBSIZE"]), keys);
    // Another try of the same is on its way, perhaps.
    hand.does(&["ZADD", DUE, FAR, "poor a"]);
    place(hand.queue(), keyed(&poor, "a", "k")).await;
    let look = hand.look("poor a").expect("it stays");
    assert!((1e12..9e12).contains(&look), "{look}");
}

#[tokio::test]
async fn a_job_that_cannot_be_read_keeps_nobody_from_the_others() {
    let server = RedisServer::shared();
    let mut hand = Hand::on(&server).await;
    placed(hand.queue(), &hand.account, &["a", "b"]).await;
    hand.does(&["HSET", "tollgate:{ada}:video:a", "job", "{\"of\": \"tomorrow\"}"]);
    assert_eq!(ids(&claim_all(hand.queue()).await), ["b"]);
    assert_eq!(claim_all(hand.queue()).await, []);
    hand.queue().find_job(&hand.account, "a").await.expect_err("it cannot be read");
}

#[tokio::test]
async fn a_full_redis_takes_no_jobs_and_still_ends_them() {
    let server = RedisServer::start();
    let nodes = two(&server.url()).await;
    let (queue, account) = (&*nodes[0].queue, funded(&*nodes[0].ledger, "full", 100).await);
    placed(queue, &account, &["a", "b"]).await;
    assert_eq!(queue.get_or_set_secret([1; 32]).await, Ok([1; 32]));
    server.command(&["SET", "ballast", &"x".repeat(1 << 20)]);
    let keys = server.command(&["DBSIZE"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    for _ in 0..3 {
        let refused = queue.place_job(keyed(&account, "c", "k")).await.expect_err("it is full");
        assert!(refused.to_string().contains("maxmemory"), "{refused}");
    }
    assert_eq!(server.command(&["DBSIZE"]), keys);
    assert_eq!(server.command(&["ZCARD", DUE]), Value::Int(2));
    assert_eq!(balances(&*nodes[0].ledger, &account).await.held, nano(2 * COST));
    let mut claims = claim_all(queue).await;
    let mut a = claims.remove(0);
    assert_eq!(queue.renew_claim(&a, LEASE_MS).await, Ok(true));
    a.job.stage = stage(JobStatus::InProgress);
    assert!(save(queue, &mut a, KEEP).await);
    assert!(queue.delete_job(&account, "a").await.expect("an answer").is_some());
    a.job.stage = stage(JobStatus::Failed);
    assert!(save(queue, &mut a, GIVE_BACK).await && a.deleted);
    assert_eq!(counts(queue).await, [1, 0, 0, 1]);
    assert_eq!(listed(queue, &account, true, 9, None).await, "b");
    let again = claim_one(&*nodes[1].queue, LEASE_MS).await;
    assert_eq!(queue.remove_job(&again).await, Ok(true));
    assert_eq!(queue.remove_job(&claims[0]).await, Ok(true));
    assert_eq!(counts(queue).await, [0; 4]);
    assert_eq!(nodes[1].queue.get_or_set_secret([2; 32]).await, Ok([1; 32]));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(place(queue, keyed(&account, "c", "k")).await, PlaceResult::New(Vec::new()));
}

#[tokio::test]
async fn a_redis_that_was_killed_has_its_jobs_again() {
    let mut server = RedisServer::start_with(&["--appendfsync", "always"]);
    let nodes = two(&server.url()).await;
    let (queue, account) = (&*nodes[0].queue, funded(&*nodes[0].ledger, "killed", 100).await);
    assert_eq!(place(queue, keyed(&account, "a", "k")).await, PlaceResult::New(Vec::new()));
    let mut claim = claim_one(queue, LEASE_MS).await;
    claim.job.stage = stage(JobStatus::InProgress);
    assert!(save(queue, &mut claim, KEEP).await);
    server.stop();
    queue.place_job(order(&account, "b")).await.expect_err("it is gone");
    queue.claim_due(LEASE_MS, 1).await.expect_err("it is gone");
    assert!(server.start_again(), "Redis does not start again");
    let asked = Instant::now();
    while queue.count_by_status().await.is_err() {
        assert!(asked.elapsed() < Duration::from_secs(20), "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(counts(queue).await, [0, 1, 0, 0]);
    assert_eq!(claim_all(queue).await, []);
    assert!(save(queue, &mut claim, GIVE_BACK).await);
    assert_eq!(claim_one(queue, LEASE_MS).await.job, claim.job);
}

fn beside(folder: &Path) -> Connection {
    let beside = Connection::open(folder.join("ledger.db")).expect("the file");
    beside.busy_timeout(Duration::from_secs(20)).expect("a setting");
    beside
}

#[tokio::test]
async fn an_order_that_sqlite_cannot_write_takes_no_money_and_fails_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, other] = two(&sqlite_url(folder.path())).await;
    let account = funded(&*one.ledger, "broken", 1_000).await;
    let broken = "CREATE TRIGGER broken BEFORE INSERT ON video_body WHEN new.body = x'626164'
                  BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END";
    beside(folder.path()).execute_batch(broken).expect("a trigger");
    for n in 0..20 {
        let bad = NewJob {
            body: Bytes::from_static(b"bad"),
            ..keyed(&account, &format!("bad-{n}"), "k")
        };
        let hold = Operation::Hold {
            id: format!("h{n}"),
            wanted: nano(1),
            least: nano(1),
            lease_ms: LONG_MS,
            key: None,
            rates: Vec::new(),
        };
        let (bad, good, kept) = tokio::join!(
            one.queue.place_job(bad),
            one.queue.place_job(order(&account, &format!("good-{n}"))),
            one.ledger.submit(&account, hold),
        );
        assert_eq!((good, kept), (Ok(PlaceResult::New(Vec::new())), Ok(Outcome::Held(nano(1)))));
        let why = bad.expect_err("it is broken").to_string();
        assert!(why.contains("broken on purpose"), "{why}");
    }
    for node in [&one, &other] {
        assert_eq!(balances(&*node.ledger, &account).await.held, nano(20 * COST + 20));
        assert_eq!(counts(&*node.queue).await, [20, 0, 0, 0]);
    }
    assert_eq!(other.ledger.expire_holds().await.expect("a sweep").open, 40);
}

#[tokio::test]
async fn a_file_from_before_there_were_jobs_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = sqlite_url(folder.path());
    let account = funded(&*opened(&url).await.ledger, "old", 100).await;
    let tables = "DROP TABLE video_body; DROP TABLE video; DROP TABLE secret";
    beside(folder.path()).execute_batch(tables).expect("they were there");
    let node = opened(&url).await;
    assert_eq!(place(&*node.queue, keyed(&account, "a", "k")).await, PlaceResult::New(Vec::new()));
    assert_eq!(node.queue.get_or_set_secret([7; 32]).await, Ok([7; 32]));
    drop(node);
    let again = opened(&url).await;
    assert_eq!(again.queue.get_or_set_secret([8; 32]).await, Ok([7; 32]));
    assert_eq!(claim_one(&*again.queue, LEASE_MS).await.job, job(&account, "a"));
    let poor = place(&*again.queue, keyed(&account, "b", "k")).await;
    assert_eq!(poor, PlaceResult::AlreadyPlaced(Box::new(Job { ..job(&account, "a") })));
}

#[tokio::test]
async fn nothing_that_is_due_is_found_without_a_walk_through_all_jobs() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = opened(&sqlite_url(folder.path())).await;
    assert_eq!(claim_all(&*node.queue).await, []);
    let beside = beside(folder.path());
    let cases = [
        ("SELECT row FROM video WHERE max(due, lease_until) <= 5", "video_next"),
        ("SELECT count(*) FROM video WHERE status = 2", "video_status"),
        ("SELECT count(*) FROM video WHERE account = 1 AND status < 2", "video_open"),
    ];
    for (asked, index) in cases {
        let plan = format!("EXPLAIN QUERY PLAN {asked}");
        let plan: String = beside.query_row(&plan, [], |row| row.get(3)).expect("a plan");
        assert!(plan.contains(&format!("INDEX {index}")), "{asked}: {plan}");
    }
}

#[tokio::test]
async fn holds_of_jobs_are_forgotten_like_all_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = opened(&sqlite_url(folder.path())).await;
    let account = funded(&*node.ledger, "holds", 100).await;
    let (old, new) =
        ("video_019000a0-0000-7000-8000-000000000000", "video_ffffffff-0000-7000-8000-0");
    placed(&*node.queue, &account, &[old, new]).await;
    let kept = || {
        let beside = beside(folder.path());
        let ids = "SELECT group_concat(id, ' ' ORDER BY id)
                   FROM (SELECT id FROM hold UNION ALL SELECT id FROM open_hold)";
        beside.query_row(ids, [], |row| row.get::<_, String>(0)).expect("ids")
    };
    assert_eq!(node.ledger.expire_holds().await.expect("a sweep").open, 2);
    assert_eq!(kept(), format!("{old} {new}"), "they are open");
    for id in [old, new] {
        let settled = node.ledger.submit(&account, super::super::script::settle(id, nano(1))).await;
        assert!(matches!(settled, Ok(Outcome::Posted { .. })), "{settled:?}");
    }
    node.ledger.expire_holds().await.expect("a sweep");
    assert_eq!(kept(), new);
}
