//! What is told of the traffic: metrics, the log, and never a secret.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Store, VENDOR_KEY, VIDEO, World, chat_of};

/// Calls of every kind: good and refused, streamed, fallen back, broken, and left early.
async fn traffic(world: &World) {
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert!(world.stream(chat_of("lmc-3.5-flash")).await.is_done());
    assert_eq!(world.chat(chat_of("orgA/famA-V3.2")).await.status, 200);
    assert_eq!(world.chat(chat_of("lmd-4.6")).await.status, 502);
    assert_eq!(world.chat(chat_of("nothing")).await.status, 404);
    assert_eq!(world.post("{").await.status, 400);
    assert_eq!(world.get_with("/v1/models", "sk-canary-of-a-stranger").await.status, 401);
    assert_eq!(world.get("/v1/models").await.status, 200);
    world.settled(3).await;
}

async fn world_with(store: Store, conf: &str) -> World {
    let builder = World::start(store).vendor("vendor_e", &["status=503", ""]).conf(conf);
    builder.vendor("vendor_d", &["status=500"]).run().await
}

#[rstest]
#[tokio::test]
async fn every_metric_that_is_promised_is_there(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = world_with(store, "").await;
    traffic(&world).await;
    let kind = if store == Store::Sqlite { "sqlite" } else { "redis" };
    let expected = [
        r#"tollgate_requests_total{endpoint="chat",model="lmb-5.5",status="200"} 1"#,
        r#"tollgate_requests_total{endpoint="chat",model="lmd-4.6",status="502"} 1"#,
        r#"tollgate_requests_total{endpoint="chat",model="",status="404"} 1"#,
        r#"tollgate_requests_total{endpoint="models",model="",status="200"} 1"#,
        r#"tollgate_requests_total{endpoint="models",model="",status="401"} 1"#,
        r#"tollgate_charged_nanousd_total{endpoint="chat",model="lmb-5.5",vendor="vendor_b"}"#,
        r#"tollgate_tokens_total{kind="prompt",model="lmb-5.5"}"#,
        r#"tollgate_tokens_total{kind="completion",model="lmb-5.5"} 10"#,
        r#"tollgate_fallbacks_total{from_route="r0",reason="overloaded",vendor="vendor_e"} 1"#,
        "tollgate_fallback_depth_count 3",
        "tollgate_fallback_depth_sum 1",
        r#"tollgate_request_seconds_count{endpoint="chat"}"#,
        r#"tollgate_first_byte_seconds_count{endpoint="chat"}"#,
        r#"tollgate_overhead_seconds_count{endpoint="chat"}"#,
        "tollgate_holds_open 0",
        "tollgate_held_nanousd 0",
        "tollgate_written_off_nanousd_total 0",
        &format!(r#"tollgate_ledger_seconds_count{{op="hold",store="{kind}"}} 4"#),
        &format!(r#"tollgate_ledger_seconds_count{{op="settle",store="{kind}"}} 3"#),
        &format!(r#"tollgate_ledger_seconds_count{{op="void",store="{kind}"}} 1"#),
        r#"tollgate_route_up{route="r0",vendor="vendor_b"} 1"#,
        concat!(r#"tollgate_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        "process_resident_memory_bytes",
        "process_open_fds",
    ];
    world.scraped(&expected).await;
}

#[tokio::test]
async fn calls_of_models_are_told_by_the_names_of_the_conventions() {
    let world = world_with(Store::Sqlite, "").await;
    traffic(&world).await;
    let of = |operation: &str, vendor: &str, model: &str| {
        format!(
            "gen_ai_operation_name={operation:?},gen_ai_provider_name={vendor:?},\
             gen_ai_request_model={model:?}"
        )
    };
    let whole = of("chat", "vendor_b", "lmb-5.5");
    let streamed = of("chat", "vendor_c", "lmc-3.5-flash");
    let refused = of("chat", "vendor_d", "lmd-4.6");
    let duration = "gen_ai_server_request_duration_seconds_count";
    let first_token = "gen_ai_server_time_to_first_token_seconds_count";
    let per_token = "gen_ai_server_time_per_output_token_seconds_count";
    world
        .scraped(&[
            &format!("{duration}{{error_type=\"\",{whole}}} 1"),
            &format!("{duration}{{error_type=\"\",{streamed}}} 1"),
            &format!("{duration}{{error_type=\"502\",{refused}}} 1"),
            &format!("{first_token}{{{streamed}}} 1"),
            &format!("{per_token}{{{streamed}}} 1"),
        ])
        .await;
    let metrics = world.metrics().await;
    assert!(!metrics.contains(&format!("{first_token}{{{whole}}}")), "a whole answer is no stream");
    assert!(!metrics.contains("gen_ai_request_model=\"\""), "a call without a model is none");
    // What is told to have been used is what was billed.
    for charge in world.settled(3).await {
        let (input, output) = charge.tokens();
        for (kind, billed) in [("input", input), ("output", output)] {
            let labels = [format!("gen_ai_request_model={:?}", charge.model)];
            let kind = format!("gen_ai_token_type={kind:?}");
            let told = world
                .metric("gen_ai_client_token_usage_sum", &[labels[0].as_str(), kind.as_str()])
                .await;
            assert_eq!(u64::try_from(told).expect("positive"), billed, "{}", charge.model);
        }
    }
}

#[tokio::test]
async fn warnings_and_errors_in_the_log_are_counted_by_their_event() {
    let world = world_with(Store::Sqlite, "").await;
    traffic(&world).await;
    let log = world.log();
    let lines = log.lines().filter(|line| line.contains(r#"event="upstream_attempt_failed""#));
    let labels = [r#"event="upstream_attempt_failed""#, r#"level="warn""#];
    let counted = world.metric("tollgate_logged_total", &labels).await;
    assert_eq!((counted, lines.count()), (2, 2), "{log}");
    let metrics = world.metrics().await;
    // Alerts look at its growth, so that it has to be there before.
    assert!(metrics.contains(r#"tollgate_logged_total{event="usage_unpriced",level="error"} 0"#));
    assert!(!metrics.contains("request_served"), "lines of the level info are not counted");
}

#[rstest]
#[tokio::test]
async fn what_metrics_say_was_charged_is_what_the_journal_says(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = world_with(store, "").await;
    traffic(&world).await;
    let charges = world.settled(3).await;
    for charge in &charges {
        let model = format!("model={:?}", charge.model);
        let charged = world.metric("tollgate_charged_nanousd_total", &[&model]).await;
        assert_eq!(charged, charge.amount_nano);
        let tokens = world.metric("tollgate_tokens_total", &[&model]).await;
        let (input, output) = charge.tokens();
        assert_eq!(u64::try_from(tokens).expect("positive"), input + output);
    }
    let all = world.metric("tollgate_charged_nanousd_total", &[]).await;
    assert_eq!(all, world.balances().await.posted);
}

#[rstest]
#[tokio::test]
async fn no_secret_is_told_to_anyone(
    #[values("text", "json")] format: &str,
    #[values("info", "trace")] level: &str,
) {
    let conf = format!("[log]\nformat = {format:?}\nlevel = {level:?}");
    let world = world_with(Store::Sqlite, &conf).await;
    let mut call = chat_of("lmb-5.5");
    call["messages"][0]["content"] = "a canary of a question".into();
    assert_eq!(world.chat(call).await.status, 200);
    world.settled(1).await;
    assert_eq!(world.chat(chat_of("lmd-4.6")).await.status, 502);
    assert_eq!(world.chat(chat_of("orgA/famA-V3.2")).await.status, 200);
    assert_eq!(world.get_with("/v1/models", "sk-canary-of-a-stranger").await.status, 401);
    assert!(world.stream(chat_of("lmc-3.5-flash")).await.is_done());
    let told = world.log() + &world.metrics().await;
    for secret in [VENDOR_KEY, &world.key, "sk-canary-of-a-stranger", "canary of a question"] {
        assert!(!told.contains(secret), "{secret} in\n{told}");
    }
    assert!(!told.contains("account-secret") && !told.contains("org-sim-account"), "{told}");
}

#[tokio::test]
async fn a_request_is_one_line_of_json() {
    let world = world_with(Store::Sqlite, "[log]\nformat = \"json\"").await;
    traffic(&world).await;
    let end = Instant::now() + Duration::from_secs(5);
    let served = loop {
        let log = world.log();
        let lines = log.lines().map(|l| serde_json::from_str::<Value>(l).expect("a line of JSON"));
        let served: Vec<_> = lines.filter(|line| line["message"] == "served").collect();
        if served.len() == 8 {
            break served;
        }
        assert!(Instant::now() < end, "eight calls, eight lines: {log}");
    };
    let charges = world.settled(3).await;
    for charge in charges {
        let line = served.iter().find(|line| line["request_id"] == charge.request_id.as_str());
        let line = line.expect("a line for the charge");
        assert_eq!(line["charge_nano"], charge.amount_nano);
        assert_eq!((&line["model"], &line["route"]), (&charge.model.into(), &charge.route.into()));
        assert_eq!((&line["account"], &line["depth"]), (&"acct".into(), &charge.depth.into()));
        assert_eq!((&line["status"], &line["basis"]), (&200.into(), &"reported".into()));
        let tokens = [&line["prompt_tokens"], &line["completion_tokens"]];
        assert!(tokens.iter().all(|n| n.as_u64().is_some_and(|n| n > 0)), "{line}");
    }
    let codes: Vec<_> = served.iter().filter_map(|line| line["code"].as_str()).collect();
    for code in ["upstream_error", "model_not_found", "invalid_json", "invalid_api_key"] {
        assert!(codes.contains(&code), "{codes:?}");
    }
}

#[tokio::test]
async fn the_call_for_a_video_is_logged_with_the_fields_of_a_chat() {
    let world = World::start(Store::Sqlite).conf("[log]\nformat = \"json\"").run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.place(json!({})).await;
    let mut lines = Vec::new();
    for model in ["lmb-5.5", VIDEO.model] {
        let model = format!(r#""model":{model:?}"#);
        let line = world.logged(&[r#""event":"request_served""#, &model]).await;
        lines.push(serde_json::from_str::<Value>(&line).expect("a line of JSON"));
    }
    let fields = |line: &Value| {
        let object = line.as_object().expect("an object");
        object.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(fields(&lines[0]), fields(&lines[1]));
    for of_both in ["account", "key", "status", "code", "depth"] {
        assert_eq!(lines[0][of_both], lines[1][of_both], "{of_both}");
    }
}

#[tokio::test]
async fn the_admin_pages_are_not_on_the_clients_address() {
    let world = World::start(Store::Sqlite).run().await;
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(world.get(path).await.status, 404, "{path}");
        let url = format!("http://{}{path}", world.gateway.admin);
        let answer = world.client().get(url).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn a_name_that_a_client_makes_up_makes_no_metric() {
    let world = World::start(Store::Sqlite).run().await;
    for number in 0..20 {
        world.chat(chat_of(&format!("made-up-{number}"))).await;
        world.get(&format!("/made-up-{number}")).await;
        world.get(&format!("/v1/models/made-up-{number}")).await;
    }
    let text = world.metrics().await;
    assert!(!text.contains("made-up"), "{text}");
}
