//! Statements through the API and on the command line: a month that runs, a month that is sealed,
//! and what comes after its seal.

use std::time::Duration;

use rstest::rstest;
use rusqlite::Connection;
use serde_json::{Value, json};
use tollgate::statement::StatementMonth;

use super::{AdminWorld, USAGE, raw};
use crate::world::{Answer, Store, World, chat_of};

/// What a call costs: see the vendor's report in `AdminWorld::start`.
const COST: i64 = 1_000 * 5_000 + 100 * 30_000;
const CREDIT: i64 = 5_000_000_000;
const DAY_MS: i64 = 86_400_000;

fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
    i64::try_from(now.as_millis()).expect("ms")
}

/// The current month, and the one before.
fn months() -> (StatementMonth, StatementMonth) {
    let current = StatementMonth::containing(now());
    (current, StatementMonth::containing(current.start() - 1))
}

async fn start(store: Store) -> AdminWorld {
    AdminWorld::of(World::start(store).own_redis().vendor("vendor_b", &[USAGE])).await
}

/// Opens an account, and makes calls of it that are charged and in the sums of usage: what reads
/// the lines while a test moves them would count them in both months.
async fn charged_account(api: &AdminWorld, name: &str, calls: usize) {
    api.post("accounts", json!({ "name": name, "credit_usd": "5" })).await;
    let issued = api.post("keys", json!({ "account": name })).await.json();
    let key = issued["key"].as_str().expect("a key").to_owned();
    for _ in 0..calls {
        let url = format!("http://{}/v1/chat/completions", api.world.gateway.http);
        let request = api.world.client().post(url).bearer_auth(&key).json(&chat_of("lmb-5.5"));
        assert_eq!(Answer::read(request).await.status, 200);
    }
    for _ in 0..200 {
        let sums = api.get(&format!("usage?account={name}&group_by=model")).await.json();
        if sums["data"][0]["calls"] == calls {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not all calls are in the sums");
}

/// Makes all that has happened to an account so far happen earlier.
fn move_back(api: &mut AdminWorld, store: Store, name: &str, ms: i64) {
    if store == Store::Sqlite {
        let beside = Connection::open(api.world.path("tollgate.db")).expect("the store");
        beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
        let of = format!("WHERE account = (SELECT id FROM account WHERE name = '{name}')");
        let moved = format!(
            "BEGIN IMMEDIATE;
             UPDATE journal_hour SET hour = hour - {ms} {of};
             UPDATE payment SET at = at - {ms} {of};
             UPDATE transfer SET at = at - {ms} {of};
             DELETE FROM usage_rollup {of};
             DELETE FROM usage_fold {of};
             INSERT OR IGNORE INTO usage_due SELECT id FROM account WHERE name = '{name}';
             COMMIT"
        );
        beside.execute_batch(&moved).expect("moved");
        return;
    }
    let mut redis = api.world.redis().connection();
    // A server of its own has one world, in the first database after that of the tests.
    redis::cmd("SELECT").arg(1).exec(&mut redis).expect("a database");
    let script = "
        local tag, ms = 'tollgate:{' .. ARGV[1] .. '}:', tonumber(ARGV[2])
        local earlier = function(at) return string.format('%.0f', tonumber(at) - ms) end
        local hours = tag .. 'journal-hours'
        for _, mark in ipairs(redis.call('ZRANGE', hours, 0, -1)) do
          local index, hour = string.match(mark, '^(%d+) (%d+)$')
          redis.call('ZREM', hours, mark)
          redis.call('ZADD', hours, index, index .. ' ' .. earlier(hour))
        end
        local known = redis.call('HGET', tag .. 'account', 'journal_hour')
        redis.call('HSET', tag .. 'account', 'journal_hour', earlier(known))
        local transfers = redis.call('HGETALL', tag .. 'transfers')
        for at = 1, #transfers, 2 do
          local transfer = cjson.decode(transfers[at + 1])
          transfer.at = earlier(transfer.at)
          redis.call('HSET', tag .. 'transfers', transfers[at], cjson.encode(transfer))
        end
        for _, key in ipairs(redis.call('KEYS', tag .. 'usage:1*')) do redis.call('DEL', key) end
        redis.call('SADD', 'tollgate:usage-due', ARGV[1])";
    redis::cmd("EVAL").arg(script).arg(0).arg(name).arg(ms).exec(&mut redis).expect("moved");
}

/// How far back the middle of a month is.
fn to_middle_of(month: StatementMonth) -> i64 {
    now() - (month.start() + 14 * DAY_MS)
}

async fn statement(api: &AdminWorld, name: &str, month: StatementMonth) -> Value {
    let answer = api.get(&format!("statements?account={name}&month={month}")).await;
    assert_eq!(answer.status, 200, "{}", raw(&answer));
    answer.json()
}

/// `A + H` of an account.
async fn left(api: &AdminWorld, name: &str) -> i64 {
    let account = api.get(&format!("accounts/{name}")).await.json();
    let of = |balance: &str| account[balance].as_i64().expect("an amount");
    of("available_nano") + of("held_nano")
}

/// The rows of FOCUS have the costs of the statement.
async fn prove_focus(api: &AdminWorld, month: &str, told: &Value, invoice: &str) {
    let words = ["export", "focus", month, "--account", "acme", "--issuer", "Example, Inc"];
    let csv = api.world.command(&words).await.done();
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let at = |name: &str| header.iter().position(|column| *column == name).expect("a column");
    let (billed, category) = (at("BilledCost"), at("ChargeCategory"));
    let mut sum = 0;
    for line in lines {
        assert!(line.contains(&format!(",\"Example, Inc\",{invoice},")), "{line}");
        let fields: Vec<&str> = line.split(',').collect();
        let nano = fields[billed].replacen('.', "", 1).parse::<i64>().expect("an amount");
        assert_eq!(nano < 0, fields[category] == "Adjustment", "{line}");
        sum += nano;
    }
    let of = |name: &str| told[format!("{name}_nano")].as_i64().expect("an amount");
    assert_eq!(sum, of("opening") + of("payments") - of("refunds") - of("closing"), "{csv}");
    let all = api.world.command(&["export", "focus", month, "--issuer", "Example, Inc"]).await;
    assert_eq!(all.done(), csv, "there is no other account");
}

#[rstest]
#[tokio::test]
async fn a_statement_of_a_month_that_is_over_stays_and_what_comes_later_is_in_the_next_one(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut api = start(store).await;
    let (current, previous) = months();
    charged_account(&api, "acme", 3).await;
    let running = statement(&api, "acme", current).await;
    let told = &running["statement"];
    assert_eq!((&running["sealed"], &running["number"]), (&json!(false), &Value::Null));
    assert_eq!((&told["opening_nano"], &told["payments_nano"]), (&json!(0), &json!(CREDIT)));
    assert_eq!(told["closing_nano"], left(&api, "acme").await);
    let model = &told["models"][0];
    assert_eq!((&model["model"], &model["calls"]), (&json!("lmb-5.5"), &json!(3)));
    assert_eq!(
        (&model["charged_nano"], &model["charged_usd"]),
        (&json!(3 * COST), &json!("0.024"))
    );
    let charge = api.get("charges?account=acme").await.json()["data"][0].clone();
    assert_eq!(model["price_versions"], json!([charge["price_version"]]));
    let path = format!("statements?account=acme&month={previous}");
    assert_eq!(api.get(&path).await.status, 400, "the account is new");

    move_back(&mut api, store, "acme", to_middle_of(previous));
    let (name, before) = ("acme", previous.to_string());
    let words = ["--json", "statement", name, &before];
    // All of them seal it at once, if nobody has.
    let (one, other, third) = tokio::join!(
        statement(&api, name, previous),
        api.world.command(&words),
        statement(&api, name, previous)
    );
    assert_eq!((&one["sealed"], &one["number"]), (&json!(true), &json!(1)));
    assert_eq!(one["statement"]["closing_nano"], CREDIT - 3 * COST);
    assert_eq!(other.json(), std::slice::from_ref(&one));
    assert_eq!(third, one);

    // By the gateway, whose clock has not changed, and by a command.
    for (id, usd) in [("c1", "0.003"), ("c2", "0.001")] {
        let id_of_call = charge["request_id"].as_str().expect("an id");
        if id == "c1" {
            let body = json!({ "account": "acme", "request_id": id_of_call, "amount_usd": usd,
                               "id": id, "reason": "cut off" });
            assert_eq!(api.post("corrections", body).await.status, 201);
        } else {
            let words = ["charge", "correct", id_of_call, usd, "--id", id, "--reason", "cut off"];
            api.world.command(&words).await.done();
        }
    }
    assert_eq!(statement(&api, name, previous).await, one, "it stays");
    let running = statement(&api, name, current).await;
    let told = &running["statement"];
    assert_eq!(told["opening_nano"], one["statement"]["closing_nano"]);
    assert_eq!((&told["corrections_nano"], &told["charges_nano"]), (&json!(4_000_000), &json!(0)));
    assert_eq!(told["closing_nano"], left(&api, "acme").await);
    assert_eq!(told["closing_nano"], CREDIT - 3 * COST + 4_000_000);
    api.world.command(&["check", "--books"]).await.done();

    let shown = api.world.command(&["statement", name, &before]).await.done();
    assert!(shown.contains("number     1, sealed "), "{shown}");
    assert!(shown.contains(" -0.024 USD"), "{shown}");
    let csv = api.world.command(&["statement", name, &before, "--csv"]).await.done();
    assert!(csv.contains(&format!("acme,{before},sealed,1,charges,lmb-5.5,3,3000,300,")), "{csv}");
    let html = api.world.command(&["statement", name, &before, "--html"]).await.done();
    assert!(html.starts_with("<!doctype html>") && html.contains("lmb-5.5"), "{html}");
    prove_focus(&api, &before, &one["statement"], "statement-1").await;
    let current = current.to_string();
    let running = statement(&api, name, StatementMonth::parse(&current).expect("a month")).await;
    prove_focus(&api, &current, &running["statement"], &format!("acme-{current}")).await;
    let both = api.world.command(&["--json", "statement", name, &before, "--csv"]).await;
    assert!(both.err.contains("one of --json, --csv and --html"), "{}", both.err);
}

#[rstest]
#[tokio::test]
async fn months_are_sealed_in_their_order_and_numbered_over_all_accounts(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut api = start(store).await;
    let (current, previous) = months();
    let before = StatementMonth::containing(previous.start() - 1);
    for name in ["acme", "other"] {
        charged_account(&api, name, 1).await;
    }
    move_back(&mut api, store, "acme", to_middle_of(before));
    move_back(&mut api, store, "other", to_middle_of(previous));
    let late = statement(&api, "acme", previous).await;
    assert_eq!(late["number"], 2, "the month before it is sealed first: {late}");
    assert_eq!(statement(&api, "other", previous).await["number"], 3);
    let early = statement(&api, "acme", before).await;
    assert_eq!((&early["number"], &early["statement"]["charges_nano"]), (&json!(1), &json!(COST)));
    for (before, after) in [(&early, &late), (&late, &statement(&api, "acme", current).await)] {
        assert_eq!(before["statement"]["closing_nano"], after["statement"]["opening_nano"]);
    }
    assert_eq!(late["statement"]["models"], json!([]));
}

#[rstest]
#[tokio::test]
async fn what_is_wrong_with_a_month_is_named_with_what_would_be_right(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = start(store).await;
    api.post("accounts", json!({ "name": "acme", "credit_usd": "5" })).await;
    let (current, previous) = months();
    let (current, previous, next) =
        (current.to_string(), previous.to_string(), current.next().to_string());
    for (month, status, param, value) in [
        ("2026-13", 400, "month", "not '2026-13'"),
        ("x", 400, "month", "not 'x'"),
        ("2026-1", 400, "month", "as in 2026-11"),
        (previous.as_str(), 400, "month", current.as_str()),
        (next.as_str(), 400, "month", current.as_str()),
    ] {
        let answer = api.get(&format!("statements?account=acme&month={month}")).await;
        let told = answer.json()["error"].clone();
        assert_eq!((answer.status, &told["param"]), (status, &json!(param)), "{month}: {told}");
        let message = told["message"].as_str().expect("a message");
        assert!(message.contains(value), "{month}: {message}");
        let command = api.world.command(&["statement", "acme", month]).await;
        assert!(command.code == 1 && command.err.contains(message), "{}", command.err);
    }
    for (path, status, param) in [
        ("statements?account=nobody&month=2026-11", 404, "account"),
        ("statements?account=acme", 400, "month"),
        ("statements?month=2026-11", 400, "account"),
        ("statements?account=acme&month=2026-11&limit=7", 400, "limit"),
    ] {
        let answer = api.get(path).await;
        let told = answer.json()["error"]["param"].clone();
        assert_eq!((answer.status, told), (status, json!(param)), "{path}: {}", raw(&answer));
    }
}

/// Sums that are not those of the journal.
#[tokio::test]
async fn books_that_do_not_add_up_make_no_statement() {
    let api = start(Store::Sqlite).await;
    let (current, _) = months();
    charged_account(&api, "acme", 2).await;
    let path = format!("statements?account=acme&month={current}");
    // Until the line is in the sums.
    for _ in 0..200 {
        if api.get("usage?account=acme").await.json()["data"][0]["calls"] == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let beside = Connection::open(api.world.path("tollgate.db")).expect("the store");
    beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
    for (wrong, right, told) in [
        ("model = 'wrong'", "model = 'lmb-5.5'", "calls of model 'wrong': the roll-ups say 2"),
        ("charged = charged + 1", "charged = charged - 1", "posted: the balance says"),
    ] {
        let change = |set: &str| format!("UPDATE usage_rollup SET {set} WHERE by_key = 0");
        beside.execute_batch(&change(wrong)).expect("changed");
        let answer = api.get(&path).await;
        assert_eq!(answer.refusal(), (500, "books_differ".to_owned()));
        assert!(answer.message().contains(told), "{}", answer.message());
        let command = api.world.command(&["statement", "acme", &current.to_string()]).await;
        assert!(command.code == 1 && command.err.contains(told), "{}", command.err);
        beside.execute_batch(&change(right)).expect("changed");
    }
    assert_eq!(api.get(&path).await.status, 200);
}

/// A newer version of the program has the sums, and has not gone on.
#[tokio::test]
async fn a_month_is_not_sealed_before_all_of_its_lines_are_in_the_sums() {
    let mut api = start(Store::Sqlite).await;
    let (current, previous) = months();
    charged_account(&api, "acme", 2).await;
    move_back(&mut api, Store::Sqlite, "acme", to_middle_of(previous));
    for _ in 0..200 {
        let usage = format!("usage?account=acme&from={previous}-01&to={current}-01");
        if api.get(&usage).await.json()["data"][0]["calls"] == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let beside = Connection::open(api.world.path("tollgate.db")).expect("the store");
    beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
    beside.execute_batch("UPDATE usage_fold SET version = version + 1").expect("changed");
    let answer = api.get(&format!("statements?account=acme&month={previous}")).await;
    assert_eq!(answer.refusal(), (503, "usage_behind".to_owned()));
    assert!(answer.message().contains("2 lines of the journal"), "{}", answer.message());
    // What runs is told with the lines that are in no sum yet.
    let running = statement(&api, "acme", current).await;
    assert_eq!(running["statement"]["closing_nano"], left(&api, "acme").await);
    beside.execute_batch("UPDATE usage_fold SET version = version - 1").expect("changed");
    assert_eq!(statement(&api, "acme", previous).await["number"], 1);
}
