//! The strict scan may refuse what serde takes (duplicates, depth), but never the other way round,
//! and both must read the same: what we admit and a vendor reads otherwise is a wrong charge.

use serde_json::{Map, Value as Serde};
use tollgate::dialect::json::{JsonDocument, JsonKind, JsonValue};

pub(crate) fn run(data: &[u8]) {
    if let Ok(document) = JsonDocument::parse(data.to_vec().into()) {
        match serde_json::from_slice(data) {
            Ok(Serde::Object(members)) => compare_documents(&document, members),
            other => panic!("the scan accepted what serde reads as {other:?}"),
        }
    }
}

fn compare_documents(document: &JsonDocument, serde: Map<String, Serde>) {
    for (name, expected) in &serde {
        let found = document.get(name).expect("a member that serde sees");
        compare_values(found, expected);
    }
    // The members of nested objects too; a duplicate that was missed makes a number differ.
    let outermost = JsonValue::from_validated(document.body().trim_ascii());
    compare_values(outermost, &Serde::Object(serde));
}

fn compare_values(ours: JsonValue<'_>, serde: &Serde) {
    match serde {
        Serde::Null => assert_eq!(ours.kind(), JsonKind::Null),
        Serde::Bool(flag) => assert_eq!(ours.bool(), Some(*flag)),
        Serde::Number(number) => {
            assert_eq!(ours.kind(), JsonKind::Number);
            // serde takes -0 for a float, so that every u64 it sees was written as one.
            assert_eq!(ours.integer(), number.as_u64().filter(|n| *n < 1 << 53));
        }
        Serde::String(text) => assert_eq!(ours.text().as_deref(), Some(text.as_str())),
        Serde::Array(list) => {
            assert_eq!(ours.kind(), JsonKind::Array);
            assert_eq!(ours.elements().count(), list.len());
            for (element, expected) in ours.elements().zip(list) {
                compare_values(element, expected);
            }
        }
        Serde::Object(members) => {
            assert_eq!(ours.kind(), JsonKind::Object);
            assert_eq!(ours.members().count(), members.len());
            for (name, value) in ours.members() {
                compare_values(value, members.get(&*name).expect("a member that we see"));
            }
        }
    }
}
