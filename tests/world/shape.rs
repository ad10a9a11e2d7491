//! Calls that many tests make.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::PATIENCE;

/// A model of a vendor.
pub(crate) fn model_of(vendor: &str) -> &'static str {
    match vendor {
        "vendor_b" => "lmb-5.5",
        "vendor_c" => "lmc-3.5-flash",
        "vendor_d" => "lmd-4.6",
        "vendor_e" => "orgA/famA-V3.2",
        other => panic!("{other} has no model here"),
    }
}

/// A short chat call.
pub(crate) fn chat_of(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "How much is 2 + 2?" }] })
}

/// Waits until something holds; panics with `what` when it does not.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A port where connections are taken and never answered, as long as the listener lives.
pub(crate) fn held_open() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    (listener, format!("http://{address}/v1"))
}
