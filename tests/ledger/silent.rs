//! A peer that takes connections and says nothing.

use std::time::Duration;

use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tollgate::store;

use super::redis_server::RedisServer;
use super::subject::{at, name, open};

/// Whoever waits for it gives up after five seconds, and a busy machine needs some more.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

#[rstest]
#[case::server("redis://", "")]
#[case::sentinel("redis-sentinel://", "/mymaster")]
#[case::cluster("redis-cluster://", "")]
#[tokio::test]
async fn a_peer_that_is_silent_is_given_up(#[case] scheme: &str, #[case] path: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let silent = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            kept.push(connection);
        }
    });
    let section = at(format!("{scheme}{address}{path}"));
    let opened = tokio::time::timeout(GIVEN_UP_WITHIN, store::open(&section)).await;
    assert!(opened.expect("it waits for ever").is_err(), "it opens");
    silent.abort();
}

/// Passes everything to a server, but for connections from before it fell silent.
async fn passes(listener: TcpListener, server: u16, silent: watch::Sender<u32>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut fell_silent = silent.subscribe();
        tokio::spawn(async move {
            let server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
            let (mut answers, mut words) = server.into_split();
            let (mut said, mut told) = client.split();
            let asks = async {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count @ 1..) = said.read(&mut buffer).await {
                    // It is taken, and goes nowhere once the server's side is gone.
                    let _ = words.write_all(&buffer[..count]).await;
                }
            };
            let tells = async {
                let copies = tokio::io::copy(&mut answers, &mut told);
                tokio::select! {
                    _ = copies => {}
                    _ = fell_silent.changed() => std::future::pending().await,
                }
            };
            tokio::join!(asks, tells);
        });
    }
}

/// A balancer, whose other end was gone, kept the connection open.
#[tokio::test]
async fn a_connection_that_falls_silent_is_made_again() {
    let server = RedisServer::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let silent = watch::Sender::new(0);
    let passing = tokio::spawn(passes(listener, server.port(), silent.clone()));
    let ledger = open(&format!("redis://{address}")).await;
    ledger.open_account(&name("silent")).await.expect("it passes");
    silent.send_modify(|times| *times += 1);
    let answers = async {
        while ledger.balances(&name("silent")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answers).await.expect("it waits for the silent end for ever");
    passing.abort();
}
