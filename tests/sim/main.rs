//! The vendor simulator as a program: the demo and the benchmarks start it.

use tokio::signal::unix::{SignalKind, signal};

#[path = "sim.rs"]
mod sim;

#[tokio::main]
async fn main() {
    let Some(listen) = listen_address() else {
        eprintln!("usage: sim --listen 127.0.0.1:9999");
        std::process::exit(2);
    };
    let simulator = sim::Sim::start_on(&listen).await;
    println!("listening on http://{}", simulator.address());
    let mut terminate = signal(SignalKind::terminate()).expect("a SIGTERM listener");
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result.expect("a SIGINT listener"),
    }
}

fn listen_address() -> Option<String> {
    let mut words = std::env::args().skip(1);
    match (words.next().as_deref(), words.next(), words.next()) {
        (Some("--listen"), Some(address), None) => Some(address),
        _ => None,
    }
}
