//! The commands that grant credit, and what others show of it.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Store, World};

/// The first object that a command prints.
async fn shown(world: &World, words: &[&str]) -> Value {
    let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
    world.command(&words).await.json().remove(0)
}

async fn account(world: &World) -> Value {
    shown(world, &["account", "show", ACCOUNT]).await
}

#[rstest]
#[tokio::test]
async fn a_grant_counts_once_and_is_not_paid_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("1").run().await;
    let grant = ["credit", "grant", ACCOUNT, "2", "--id", "g-1", "--expires", "90d"];
    let first = shown(&world, &grant).await;
    let expires = first["expires_at"].as_str().expect("a time").to_owned();
    let expected = json!({
        "account": ACCOUNT, "id": "g-1", "amount_nano": 2_000_000_000_u64, "source": "promotion",
        "expires_at": expires,
    });
    assert_eq!(first, expected);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(shown(&world, &grant).await, expected, "the time is that of the first try");
    let voucher =
        ["credit", "grant", ACCOUNT, "0.5", "--id=g-2", "--expires=never", "--source=voucher"];
    let told = world.command(&voucher).await.done();
    let lines = ["account      acct", "granted      0.50 USD", "source       voucher"];
    assert_eq!(told.lines().collect::<Vec<_>>(), [&lines[..], &["expires      never"]].concat());

    let taken = shown(&world, &["credit", "take", ACCOUNT, "5", "--id", "r-1"]).await;
    assert_eq!(taken["taken_nano"], 1_000_000_000, "only paid credit is paid back");
    let left = account(&world).await;
    assert_eq!(left["credited_nano"], 2_500_000_000_u64);
    let lots = json!([
        { "source": "promotion", "expires_at": expires, "available_nano": 2_000_000_000_u64,
          "held_nano": 0 },
        { "source": "voucher", "expires_at": null, "available_nano": 500_000_000,
          "held_nano": 0 },
    ]);
    assert_eq!(left["lots"], lots);
    let plain = world.command(&["account", "show", ACCOUNT]).await.done();
    let lot = format!("lot          promotion until {expires}: available 2.00, held 0.00 USD");
    assert!(plain.lines().any(|line| line == lot), "{plain}");

    let listed = world.command(&["--json", "payments", ACCOUNT]).await.json();
    let kinds: Vec<_> = listed.iter().map(|line| line["kind"].clone()).collect();
    assert_eq!(kinds, ["payment", "grant", "grant", "refund"]);
    assert_eq!(listed[2]["lot"], "never/voucher");
    assert!(listed[1]["lot"].as_str().is_some_and(|lot| lot.ends_with("/promotion")));
    let plain = world.command(&["payments", ACCOUNT]).await.done();
    assert!(plain.contains(&format!("g-1  2.00 USD  2.00 USD  promotion until {expires}")));

    let other_amount = ["credit", "grant", ACCOUNT, "3", "--id", "g-1", "--expires", "90d"];
    let payment = ["credit", "add", ACCOUNT, "2", "--id", "g-1"];
    for words in [&other_amount[..], &payment] {
        let refused = world.command(words).await;
        assert_eq!((refused.code, refused.err.contains("before")), (1, true), "{}", refused.err);
    }
    assert_eq!(account(&world).await, left);
}

#[rstest]
#[tokio::test]
async fn granted_credit_expires_and_leaves_a_line(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("1").run().await;
    let grant = ["credit", "grant", ACCOUNT, "2", "--id=g", "--expires=2s"];
    let expires = shown(&world, &grant).await["expires_at"].clone();
    let expires = expires.as_str().expect("a time");
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let left = account(&world).await;
    let one = json!(1_000_000_000);
    assert_eq!((&left["credited_nano"], &left["available_nano"]), (&one, &one));
    // Any change lets it expire in the books as well.
    world.command(&["credit", "add", ACCOUNT, "1", "--id", "p"]).await.done();
    assert_eq!(account(&world).await["lots"], json!([]));
    let lines = world.command(&["--json", "charges", ACCOUNT]).await.json();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (&lines[0]["kind"], &lines[0]["amount_nano"], &lines[0]["written_off_nano"]),
        (&json!("expiry"), &json!(2_000_000_000_u64), &json!(0))
    );
    assert!(lines[0]["expired"].as_str().is_some_and(|lot| lot.ends_with("000/promotion")));
    let plain = world.command(&["charges", ACCOUNT]).await.done();
    let told = format!("  expired  promotion until {expires}  2.00 USD");
    assert!(plain.trim_end().ends_with(&told), "{plain}");
}

#[rstest]
#[tokio::test]
async fn an_account_has_at_most_fifteen_lots(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).credit("1").run().await;
    for day in 1..=16 {
        let (id, date) = (format!("g-{day}"), format!("2030-01-{day:02}"));
        let words = ["credit", "grant", ACCOUNT, "0.1", "--id", &id, "--expires", &date];
        let told = world.command(&words).await;
        if day <= 15 {
            told.done();
            continue;
        }
        assert_eq!(told.code, 1);
        let why = "the account has 15 lots of granted credit";
        assert!(told.err.contains(why), "{}", told.err);
        assert!(told.err.contains("(promotion until 2030-01-01T00:00:00Z)"), "{}", told.err);
    }
    let same = ["credit", "grant", ACCOUNT, "0.1", "--id=more", "--expires=2030-01-07"];
    world.command(&same).await.done();
    let lots = account(&world).await["lots"].clone();
    assert_eq!(lots.as_array().map(Vec::len), Some(15));
    assert_eq!(lots[6]["available_nano"], 200_000_000);
}

#[tokio::test]
async fn a_grant_that_cannot_be_is_refused_with_what_would_be_right() {
    let world = World::start(Store::Sqlite).credit("1").run().await;
    for (name, usd, options, told) in [
        (ACCOUNT, "1", &["--expires=soon"][..], "'soon' is no time"),
        (ACCOUNT, "1", &["--expires=0d"], "not in the future"),
        (
            ACCOUNT,
            "1",
            &["--expires=2020-01-01"],
            "the expiry '2020-01-01T00:00:00Z' is not in the future: give a time after 20",
        ),
        (ACCOUNT, "1", &["--expires=3654d"], "more than ten years away"),
        (ACCOUNT, "1", &["--expires=99999999999999999999w"], "more than ten years away"),
        (ACCOUNT, "1", &["--expires=never", "--source=paid"], "is a payment"),
        (ACCOUNT, "1", &["--expires=9d", "--source=gift"], "the sources are promotion, voucher"),
        (ACCOUNT, "x", &["--expires=9d"], "is no amount in USD"),
        (ACCOUNT, "1", &[], "--expires"),
        ("nobody", "1", &["--expires=9d"], "there is no account 'nobody'"),
    ] {
        let words = [&["credit", "grant", name, usd, "--id=g"], options].concat();
        let refused = world.command(&words).await;
        assert_ne!(refused.code, 0, "{options:?}");
        assert!(refused.err.contains(told), "{options:?}: {}", refused.err);
    }
    assert_eq!(account(&world).await["credited_nano"], 1_000_000_000);
}
