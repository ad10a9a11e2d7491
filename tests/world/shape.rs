//! Calls that many tests make.

use serde_json::{Value, json};

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
