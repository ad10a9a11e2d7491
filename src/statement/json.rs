//! A statement with its seal as JSON. The statement is the text that is stored, byte for byte, so
//! that anyone can prove its digest.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::view::StatementView;
use crate::ledger::{push_number, push_string};
use crate::usage::moment_text;

/// Writes a statement with its seal.
pub(crate) fn write_view(view: &StatementView) -> String {
    let mut json = String::with_capacity(view.json.len() + 256);
    let moment = |at| moment_text(at).unwrap_or_default();
    match &view.seal {
        Some(seal) => {
            push_number(&mut json, r#"{"sealed":true,"number":"#, seal.number);
            push_string(&mut json, r#","sealed_at":"#, &moment(seal.sealed_at));
            push_string(&mut json, r#","sha256":"#, &seal.sha256);
        }
        None => {
            json.push_str(r#"{"sealed":false,"number":null,"sealed_at":null,"sha256":null"#);
        }
    }
    push_string(&mut json, r#","as_of":"#, &moment(view.as_of));
    json.push_str(r#","statement":"#);
    json.push_str(&view.json);
    json.push('}');
    json
}
