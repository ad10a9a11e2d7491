//! The strict scan may refuse what serde takes (duplicates, depth), but never the other way round,
//! and both must read the same: what we admit and a vendor reads otherwise is a wrong charge.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value as Serde};
use tollgate::dialect::json::{Document, Kind, Value};

fuzz_target!(|data: &[u8]| {
    if let Ok(document) = Document::parse(data.to_vec().into()) {
        match serde_json::from_slice(data) {
            Ok(Serde::Object(members)) => compare(&document, members),
            other => panic!("the scan accepted what serde reads as {other:?}"),
        }
    }
});

fn compare(document: &Document, serde: Map<String, Serde>) {
    for (name, expected) in &serde {
        let found = document.get(name).expect("a member that serde sees");
        agree(found, expected);
    }
    // The members of nested objects too; a duplicate that was missed makes a number differ.
    let outermost = Value::trusted(document.body().trim_ascii());
    agree(outermost, &Serde::Object(serde));
}

fn agree(ours: Value<'_>, serde: &Serde) {
    match serde {
        Serde::Null => assert_eq!(ours.kind(), Kind::Null),
        Serde::Bool(flag) => assert_eq!(ours.bool(), Some(*flag)),
        Serde::Number(number) => {
            assert_eq!(ours.kind(), Kind::Number);
            // serde takes -0 for a float, so that every u64 it sees was written as one.
            assert_eq!(ours.whole(), number.as_u64().filter(|n| *n < 1 << 53));
        }
        Serde::String(text) => assert_eq!(ours.text().as_deref(), Some(text.as_str())),
        Serde::Array(list) => {
            assert_eq!(ours.kind(), Kind::List);
            assert_eq!(ours.elements().count(), list.len());
            for (element, expected) in ours.elements().zip(list) {
                agree(element, expected);
            }
        }
        Serde::Object(members) => {
            assert_eq!(ours.kind(), Kind::Object);
            assert_eq!(ours.members().count(), members.len());
            for (name, value) in ours.members() {
                agree(value, members.get(&*name).expect("a member that we see"));
            }
        }
    }
}
