//! More connections than there may be.

use rstest::rstest;

use super::{Client, code, head};
use crate::world::{Store, World};

#[rstest]
#[case::in_all("connections_max = 3", "connections")]
#[case::from_one_address("connections_per_address_max = 3", "address")]
#[tokio::test]
async fn who_is_one_too_many_is_told_so_and_hung_up_on(#[case] limit: &str, #[case] reason: &str) {
    let world = World::start(Store::Sqlite).conf(&format!("[limits]\n{limit}")).run().await;
    // The one that looked whether there is a gateway.
    world.metric_becomes("tollgate_connections", &[], 0).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client::of(&world).await;
        client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
        assert_eq!(client.answer().await.status, 200);
        clients.push(client);
    }
    let answers = Client::of(&world).await.rest().await;
    assert_eq!((answers[0].status, code(&answers[0])), (503, "overloaded".to_owned()));
    assert_eq!(answers[0].header("retry-after"), Some("1"));
    assert_eq!(answers[0].header("connection"), Some("close"));
    assert!(answers[0].header("x-request-id").is_some());
    let reason = format!("reason=\"{reason}\"");
    world.metric_becomes("tollgate_shed_total", &[&reason], 1).await;
    world.metric_becomes("tollgate_connections", &[], 3).await;
    for client in &mut clients {
        client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
        assert_eq!(client.answer().await.status, 200, "those who are in stay in");
    }
    drop(clients.pop());
    world.metric_becomes("tollgate_connections", &[], 2).await;
    let mut client = Client::of(&world).await;
    client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn connections_that_come_and_go_leave_nothing_behind() {
    let conf = "[limits]\nconnections_per_address_max = 5";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    for number in 0..60 {
        let mut client = Client::of(&world).await;
        match number % 3 {
            0 => client.send("GET /v1/models HT").await,
            1 => {
                client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
                assert_eq!(client.answer().await.status, 200);
            }
            _ => {}
        }
        drop(client);
        world.metric_becomes("tollgate_connections", &[], 0).await;
    }
}

/// So many descriptors are not enough for the connections that are configured.
#[tokio::test]
async fn the_bound_of_descriptors_is_raised_and_what_does_not_fit_is_told() {
    let conf = "[limits]\nconnections_max = 999_999_999";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    world.logged(&["more connections are allowed than the system has descriptors for"]).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", world.gateway.id()));
    let limits = limits.expect("a process has limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
}
