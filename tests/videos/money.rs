//! What is held for a job, what is charged, and how many an account can have.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use super::{SHORT, SHORT_TICKS, nano, proven, swift};
use crate::world::{Answer, Store, VIDEO, Video, World, quick, usd};

/// The price list: nano-USD a second.
const RATES: [(&str, &str, i64); 5] = [
    ("lmd-imagine-video", "480p", 50_000_000),
    ("lmd-imagine-video", "720p", 70_000_000),
    ("lmd-imagine-video-1.5", "480p", 80_000_000),
    ("lmd-imagine-video-1.5", "720p", 140_000_000),
    ("lmd-imagine-video-1.5", "1080p", 250_000_000),
];

#[rstest]
#[tokio::test]
async fn seconds_times_the_rate_are_held_and_charged_when_the_vendor_names_no_sum(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["no-usage;video-ms=2500"]);
    let world = builder.credit("100").conf(&quick(&[])).run().await;
    let mut expected = Vec::new();
    let mut held = 0;
    for (model, resolution, rate) in RATES {
        for seconds in [1, 4, 15] {
            let prompt = format!("{model} {resolution} {seconds}");
            let members = json!({
                "model": model, "resolution": resolution, "seconds": seconds, "prompt": prompt,
            });
            expected.push((world.place(members).await, resolution, seconds, rate * seconds));
            held += rate * seconds;
        }
    }
    assert_eq!(world.balances().await.held, held);
    let ids: Vec<_> = expected.iter().map(|(id, ..)| id.clone()).collect();
    let charges = proven(&world, &ids).await;
    for (id, resolution, seconds, amount) in expected {
        let charge = charges.iter().find(|charge| charge.request_id == id).expect("a charge");
        assert_eq!(charge.usage, json!({ "seconds": seconds, "resolution": resolution }));
        assert_eq!((charge.amount_nano, charge.basis.as_str()), (amount, "fixed"), "{charge:?}");
        let usage = &world.video(&id).await.json["usage"];
        assert_eq!(
            (&usage["seconds"], &usage["resolution"]),
            (&seconds.into(), &resolution.into())
        );
    }
}

#[rstest]
#[case::as_listed("", Some(SHORT_TICKS))]
#[case::a_tenth_of_a_nano("ticks=1", Some(1))]
#[case::one_nano("ticks=10", Some(10))]
#[case::a_little_more("ticks=11", Some(11))]
#[case::less_than_held("ticks=1234567891", Some(1_234_567_891))]
#[case::more_than_held("ticks=2800000001", Some(2_800_000_001))]
#[case::with_an_image("ticks=2900000000", Some(2_900_000_000))]
#[case::much_more_than_held("ticks=40000000000", Some(40_000_000_000))]
#[case::more_than_there_is("ticks=99999999999", Some(99_999_999_999))]
#[case::not_told("no-usage", None)]
#[case::told_as_null("null-usage", None)]
#[case::told_as_nonsense("bad-usage", None)]
#[case::told_as_nothing("poll.ticks=0", None)]
#[case::absurd("poll.ticks=100000000001", None)]
#[case::beyond_all_numbers("poll.ticks=18446744073709551615", None)]
#[tokio::test]
async fn a_video_is_charged_what_it_cost_whatever_was_held(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] faults: &str,
    #[case] ticks: Option<u64>,
) {
    let faults = format!("{faults};video-ms=40");
    let world = World::start(store).vendor("vendor_d", &[&faults]).conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    let video = world.over(&id).await;
    assert_eq!(video.outcome(), "completed");
    let charge = world.charge().await;
    let amount = ticks.map_or(SHORT, nano);
    assert_eq!((charge.amount_nano, video.cost_nano()), (amount, amount));
    let basis = if ticks.is_some() { "reported" } else { "fixed" };
    let mut usage = json!({ "seconds": 4, "resolution": "720p" });
    if let Some(ticks) = ticks {
        usage["cost_in_usd_ticks"] = ticks.into();
    }
    assert_eq!((charge.usage, charge.basis.as_str()), (usage, basis));
    assert_eq!(charge.written_off_nano, (amount - 5_000_000_000).max(0));
    if charge.written_off_nano > 0 {
        world.metric_becomes("tollgate_write_offs_total", &[], 1).await;
        world.logged(&["charge written off: above what the account had", &id]).await;
    }
    let balances = world.balances().await;
    assert_eq!(balances.available, (5_000_000_000 - amount).max(0));
}

#[rstest]
#[case::exactly_enough(SHORT, 200)]
#[case::a_nano_too_little(SHORT - 1, 402)]
#[case::nothing(0, 402)]
#[tokio::test]
async fn a_job_needs_all_of_its_price(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] credit: i64,
    #[case] status: u16,
) {
    let world = swift(store).credit(&usd(credit)).run().await;
    let answer = world.ask(VIDEO).await;
    assert_eq!(answer.status, status, "{answer:?}");
    if status == 200 {
        assert_eq!(world.balances().await.available, 0);
        proven(&world, &[Video::of(&answer).id().to_owned()]).await;
        return;
    }
    assert_eq!(answer.refusal(), (402, "insufficient_credits".to_owned()));
    assert_eq!(world.get("/v1/videos").await.json()["data"], json!([]));
    world.free_of_charge().await;
    assert_eq!(world.submissions().len(), 0);
}

#[rstest]
#[case::on_sqlite(Store::Sqlite, false)]
#[case::on_redis(Store::Redis, false)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn twenty_at_once_with_credit_for_seven_are_seven(#[case] store: Store, #[case] two: bool) {
    let credit = 7 * SHORT + SHORT - 1;
    let world = swift(store).credit(&usd(credit)).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let calls = (0..20).map(|number| {
        let gateway = second.as_ref().filter(|_| number % 2 == 1).unwrap_or(&world.gateway);
        let body = VIDEO.sent(&json!({ "prompt": format!("number {number}") }));
        let request = world.url_of(gateway, VIDEO.path).header("content-type", body.media);
        Answer::read(request.body(body.bytes))
    });
    let answers = join_all(calls).await;
    let (good, bad): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((good.len(), bad.len()), (7, 13), "{answers:?}");
    assert!(bad.iter().all(|answer| answer.is_short_of_credit()), "{bad:?}");
    let ids: Vec<_> = good.iter().map(|answer| Video::of(answer).id().to_owned()).collect();
    assert_eq!(proven(&world, &ids).await.len(), 7);
    assert_eq!(world.submissions().len(), 7, "the vendor heard of no other");
    let balances = world.balances().await;
    assert_eq!((balances.posted, balances.available), (7 * SHORT, SHORT - 1));
    assert_eq!(world.get("/v1/videos").await.json()["data"].as_array().map(Vec::len), Some(7));
}

/// Money that failed jobs gave back is there for others.
#[rstest]
#[tokio::test]
async fn what_failed_gives_its_money_back_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = swift(store).credit(&usd(SHORT)).run().await;
    for number in 0..3 {
        let id = world.place(json!({ "prompt": format!("{number} [fails]") })).await;
        assert!(world.ask(VIDEO).await.is_short_of_credit());
        assert_eq!(world.over(&id).await.outcome(), "failed vendor_failed");
    }
    let id = world.place(json!({})).await;
    let charge = proven(&world, &[id]).await.remove(0);
    assert_eq!((charge.amount_nano, world.balances().await.available), (SHORT, 0));
}

#[rstest]
#[tokio::test]
async fn an_account_has_so_many_jobs_under_way_and_no_more(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[("open_max", 3)])).run().await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let prompt = format!("{number} [slow 1500]");
        ids.push(world.place(json!({ "prompt": prompt })).await);
    }
    let answer = world.ask(VIDEO).await;
    assert_eq!(answer.refusal(), (429, "too_many_videos".to_owned()));
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    assert_eq!(world.balances().await.held, 3 * SHORT);
    let stranger = world.another_account("stranger", "5").await;
    let body = VIDEO.sent(&json!({ "prompt": "of another account" }));
    let request = world.sending(VIDEO.path, &body.media, Some(&stranger)).body(body.bytes);
    assert_eq!(Answer::read(request).await.status, 200, "others are not in the way");
    assert_eq!(world.over(&ids[0]).await.outcome(), "completed");
    ids.push(world.place(json!({})).await);
    proven(&world, &ids).await;
}
