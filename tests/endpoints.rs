//! The endpoints beside conversation: what reaches the vendor, what comes back, what is charged.

mod agents;
mod compact;
mod edits;
mod embeddings;
mod given;
mod images;
mod listing;
mod long_embeddings;
mod moderations;
mod money;
mod prompts;
mod reservations;
mod responses;
mod servers;
mod sizes;
mod speech;
mod streams;
mod token_counts;
mod traffic;
mod tricks;

use serde_json::{Value, json};

use crate::sim::Billed;
use crate::world::{Answer, Offer};

/// The response of an answer, which came whole or at the end of a stream.
fn response_of(answer: &Answer, stream: bool) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    if !stream {
        return answer.json();
    }
    let raw = String::from_utf8(answer.body.to_vec()).expect("text");
    let data = raw.lines().rfind(|line| line.starts_with("data: ")).expect("an event");
    let last: Value = serde_json::from_str(&data[6..]).expect("JSON");
    assert_eq!(last["type"], "response.completed", "{raw}");
    last["response"].clone()
}

/// The nano-USD of what a vendor bills, at the listed price of the offer's model.
fn price(offer: Offer, billed: &Billed) -> i64 {
    let (input, output) = (billed.prompt, billed.total - billed.prompt);
    let nano = match offer.model {
        "lmb-5.5" => input * 5_000 + output * 30_000,
        "lmb-image-1" => input * 5_000 + output * 40_000,
        "lmd-imagine-image" => billed.ticks.div_ceil(10),
        "tts-1" => billed.characters * 15_000,
        "text-embedding-3-small" => input * 20,
        "lmc-embedding-2" => input * 200,
        other => panic!("{other} has no price here"),
    };
    i64::try_from(nano).expect("a small price")
}

/// What an image, or speech of `hello`, is held for before the vendor is asked.
fn reservation(offer: Offer) -> i64 {
    match offer.model {
        "lmb-image-1" => 360_000_000,
        "lmd-imagine-image" => 20_000_000,
        "tts-1" => 5 * 15_000,
        other => panic!("{other} has no reservation here"),
    }
}

/// How the journal writes down what a vendor bills.
fn usage(offer: Offer, billed: &Billed) -> Value {
    let output = billed.total - billed.prompt;
    match offer.model {
        "lmd-imagine-image" => json!({ "images": 1, "cost_in_usd_ticks": billed.ticks }),
        "tts-1" => json!({ "characters": billed.characters }),
        _ => json!({ "prompt_tokens": billed.prompt, "completion_tokens": output }),
    }
}
