//! A disk that is full: what is under way is charged, nothing new is bought, and it mends.

use std::process::Command;
use std::time::Duration;

use super::let_in_again;
use crate::world::{Process, Store, World, chat_of};

/// No file of a process grows beyond so many bytes.
fn limit(gateway: &Process, bytes: &str) {
    let (process, limit) =
        (format!("--pid={}", gateway.id()), format!("--fsize={bytes}:unlimited"));
    let set = Command::new("prlimit").args([process, limit]).status();
    assert!(set.is_ok_and(|status| status.success()), "prlimit");
}

#[tokio::test]
async fn without_room_for_its_outbox_a_gateway_charges_what_runs_and_lets_nobody_in() {
    let mut world = World::start(Store::Redis).run().await;
    world.gateway = world.unlimited_gateway().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    limit(&world.gateway, "1");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(2).await;
    assert!(world.metric("tollgate_outbox_errors_total", &[]).await > 0);
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
    let ready = world.client().get(format!("http://{}/readyz", world.gateway.admin)).send().await;
    assert_eq!(ready.expect("readiness").status(), 503);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.status, 503, "it was let in without room");
    limit(&world.gateway, "unlimited");
    let_in_again(&world).await;
    world.settled(3).await;
}
