//! Edits an object's members by splices: the bytes that are not edited stay as they are.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::document::JsonDocument;
use super::scan::JsonMember;
use super::value::JsonValue;

/// The edit of one member.
#[derive(Debug, Clone)]
enum MemberPatch {
    Unchanged,
    Removed,
    /// The member has another name, or another value, or both. A value of `None` keeps the old one.
    Changed {
        name: String,
        value: Option<String>,
    },
}

/// A document with edits that have not been applied yet.
#[derive(Debug)]
pub struct JsonPatch<'a> {
    document: &'a JsonDocument,
    patches: Vec<MemberPatch>,
    added: Vec<(String, String)>,
}

impl<'a> JsonPatch<'a> {
    /// Returns a patch without edits.
    #[must_use]
    pub fn new(document: &'a JsonDocument) -> JsonPatch<'a> {
        JsonPatch {
            document,
            patches: vec![MemberPatch::Unchanged; document.members.len()],
            added: Vec::new(),
        }
    }

    /// Returns the value of a member after the edits so far; `None` if there is no such member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<JsonValue<'_>> {
        if let Some((_, json)) = self.added.iter().find(|(n, _)| n == name) {
            return Some(JsonValue::from_validated(json.as_bytes()));
        }
        let at = self.position(name)?;
        match &self.patches[at] {
            MemberPatch::Changed { value: Some(json), .. } => {
                Some(JsonValue::from_validated(json.as_bytes()))
            }
            _ => Some(self.document.value(&self.document.members[at])),
        }
    }

    /// Sets the value of a member (JSON text); adds the member if it is absent.
    pub fn set(&mut self, name: &str, json: String) {
        if let Some(added) = self.added.iter_mut().find(|(n, _)| n == name) {
            added.1 = json;
        } else if let Some(at) = self.position(name) {
            self.patches[at] = MemberPatch::Changed { name: name.to_owned(), value: Some(json) };
        } else {
            self.added.push((name.to_owned(), json));
        }
    }

    /// Removes a member, if it is present.
    pub fn remove(&mut self, name: &str) {
        self.added.retain(|(n, _)| n != name);
        if let Some(at) = self.position(name) {
            self.patches[at] = MemberPatch::Removed;
        }
    }

    /// Renames a member. A member that already has the new name is removed.
    pub fn rename(&mut self, old: &str, new: &str) {
        if self.get(old).is_none() || old == new {
            return;
        }
        self.remove(new);
        if let Some(added) = self.added.iter_mut().find(|(n, _)| n == old) {
            new.clone_into(&mut added.0);
        } else if let Some(at) = self.position(old) {
            let value = match std::mem::replace(&mut self.patches[at], MemberPatch::Removed) {
                MemberPatch::Changed { value, .. } => value,
                MemberPatch::Unchanged | MemberPatch::Removed => None,
            };
            self.patches[at] = MemberPatch::Changed { name: new.to_owned(), value };
        }
    }

    /// Returns the edited body, as pieces that are mostly slices of the original.
    #[must_use]
    pub fn finish(self) -> Vec<Bytes> {
        let body = &self.document.body;
        if self.added.is_empty() && self.patches.iter().all(|s| matches!(s, MemberPatch::Unchanged))
        {
            return vec![body.clone()];
        }
        let mut pieces = PatchPieces { body, out: Vec::new(), copied_until: 0 };
        let mut any_before = !self.added.is_empty();
        if any_before {
            let members: Vec<String> = self
                .added
                .iter()
                .map(|(name, json)| format!("{}:{json}", json_string(name)))
                .collect();
            pieces.copy_until(self.document.content_start);
            pieces.out.push(Bytes::from(members.join(",")));
        }
        let mut end_of_previous = self.document.content_start;
        for (member, patch) in self.document.members.iter().zip(&self.patches) {
            if matches!(patch, MemberPatch::Removed) {
                // A member is removed together with the comma before it.
                pieces.skip(end_of_previous, member.value.end);
            } else {
                // The comma before a member stays only if another member remains before the comma.
                let had_comma_before = end_of_previous != self.document.content_start;
                if had_comma_before != any_before {
                    pieces.skip(end_of_previous, member.name.range.start - 1);
                    if any_before {
                        pieces.out.push(Bytes::from_static(b","));
                    }
                }
                any_before = true;
            }
            if let MemberPatch::Changed { name, value } = patch {
                pieces.skip(member.name.range.start - 1, member.value.start);
                pieces.out.push(Bytes::from(format!("{}:", json_string(name))));
                if let Some(json) = value {
                    pieces.skip(member.value.start, member.value.end);
                    pieces.out.push(Bytes::from(json.clone()));
                }
            }
            end_of_previous = member.value.end;
        }
        pieces.copy_until(body.len());
        pieces.out
    }

    fn position(&self, name: &str) -> Option<usize> {
        let named = |(member, patch): (&JsonMember, &MemberPatch)| match patch {
            MemberPatch::Unchanged => self.document.is_named(member, name),
            MemberPatch::Removed => false,
            MemberPatch::Changed { name: new_name, .. } => new_name == name,
        };
        self.document.members.iter().zip(&self.patches).position(named)
    }
}

/// Encodes a text as a JSON string, with its quotes.
#[must_use]
pub(crate) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

struct PatchPieces<'a> {
    body: &'a Bytes,
    out: Vec<Bytes>,
    /// The original up to this offset was copied or skipped.
    copied_until: usize,
}

impl PatchPieces<'_> {
    fn copy_until(&mut self, end: usize) {
        if end > self.copied_until {
            self.out.push(self.body.slice(self.copied_until..end));
            self.copied_until = end;
        }
    }

    fn skip(&mut self, from: usize, to: usize) {
        self.copy_until(from);
        self.copied_until = self.copied_until.max(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value as Json};

    fn document(text: &str) -> JsonDocument {
        JsonDocument::parse(Bytes::from(text.to_owned())).expect("sound")
    }

    fn text(pieces: &[Bytes]) -> String {
        String::from_utf8(pieces.concat()).expect("text")
    }

    #[test]
    fn what_is_not_touched_keeps_its_bytes() {
        let doc = document("{ \"a\" : 1.0 ,\n\"b\":[ ] , \"c\":\"\\u0041\" }");
        let mut patch = JsonPatch::new(&doc);
        patch.set("b", "2".to_owned());
        assert_eq!(text(&patch.finish()), "{ \"a\" : 1.0 ,\n\"b\":2 , \"c\":\"\\u0041\" }");
        assert_eq!(JsonPatch::new(&doc).finish(), vec![doc.body().clone()]);
    }

    #[derive(Debug, Clone)]
    enum Edit {
        Set(u8, i64),
        Remove(u8),
        Rename(u8, u8),
    }

    fn edit() -> impl Strategy<Value = Edit> {
        prop_oneof![
            (0..6u8, any::<i64>()).prop_map(|(n, v)| Edit::Set(n, v)),
            (0..6u8).prop_map(Edit::Remove),
            (0..6u8, 0..6u8).prop_map(|(a, b)| Edit::Rename(a, b)),
        ]
    }

    proptest! {
        #[test]
        fn splices_agree_with_edits_on_a_map(
            names in proptest::collection::btree_set(0..6u8, 0..6),
            edits in proptest::collection::vec(edit(), 0..8),
            space in "[ \n]{0,2}",
        ) {
            let member = |n| format!("{space}\"m{n}\"{space}:{space}[\"v{n}\"]{space}");
            let members: Vec<String> = names.iter().map(member).collect();
            let doc = document(&format!("{{{space}{}}}{space}", members.join(",")));
            let mut model: Map<String, Json> =
                serde_json::from_slice(doc.body()).expect("an object");
            let mut patch = JsonPatch::new(&doc);
            for edit in edits {
                match edit {
                    Edit::Set(n, v) => {
                        patch.set(&format!("m{n}"), v.to_string());
                        model.insert(format!("m{n}"), v.into());
                    }
                    Edit::Remove(n) => {
                        patch.remove(&format!("m{n}"));
                        model.remove(&format!("m{n}"));
                    }
                    Edit::Rename(a, b) => {
                        patch.rename(&format!("m{a}"), &format!("m{b}"));
                        if let Some(v) = model.remove(&format!("m{a}")) {
                            model.insert(format!("m{b}"), v);
                        }
                    }
                }
            }
            let out = text(&patch.finish());
            let read: Json = serde_json::from_str(&out)
                .map_err(|e| TestCaseError::fail(format!("{e}: {out}")))?;
            prop_assert_eq!(read, Json::Object(model));
            prop_assert!(JsonDocument::parse(Bytes::from(out)).is_ok());
        }
    }
}
