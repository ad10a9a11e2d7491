//! Journal lines as customers are shown them, and which of them a key may see.

use serde::Deserialize;

use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::scope_check;
use crate::ledger::{JournalEntry, KeyId, KeyRecord};
use crate::money::fee::ChargedFee;
use crate::money::{BilledUnits, UsageBasis};
use crate::usage::UsageRows;

/// What is shown of a journal line. A correction has few of these members, and an expiry only its
/// time.
#[derive(Debug, Deserialize)]
pub(super) struct ShownLine {
    /// The id of the call that was charged.
    pub(super) request_id: Option<String>,
    /// The id of the call whose charge is corrected.
    pub(super) corrects: Option<String>,
    /// When the charge or the correction was made, or credit has expired, in unix ms.
    pub(super) at: i64,
    /// The id of the API key; `None` in a line of an older version.
    pub(super) key_id: Option<KeyId>,
    /// The beginning of the API key.
    pub(super) key_prefix: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) model: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) route: Option<String>,
    pub(super) depth: Option<u32>,
    pub(super) usage: Option<BilledUnits>,
    pub(super) basis: Option<UsageBasis>,
    /// The fees that are in the amount.
    #[serde(default)]
    pub(super) fees: Vec<ChargedFee>,
    pub(super) price_version: Option<String>,
    /// The id of the reply as the client got it.
    pub(super) reply_id: Option<String>,
}

impl ShownLine {
    /// Reads the line of an entry; `None` if it is of a kind that is not known here.
    pub(super) fn parse(entry: &JournalEntry) -> Option<ShownLine> {
        serde_json::from_str(&entry.line).ok()
    }

    /// Returns the id of the call that the line is about; `None` for an expiry.
    pub(super) fn call_id(&self) -> Option<&str> {
        self.request_id.as_deref().or(self.corrects.as_deref())
    }

    /// Returns the billed units as JSON; `None` if the line is no charge.
    pub(super) fn usage_json(&self) -> Option<String> {
        // Units can always be written as JSON.
        self.usage.map(|units| serde_json::to_string(&units).unwrap_or_default())
    }

    /// Returns the fees as JSON; `None` if there are none.
    pub(super) fn fees_json(&self) -> Option<String> {
        // Fees can always be written as JSON.
        let is_charged = !self.fees.is_empty();
        is_charged.then(|| serde_json::to_string(&self.fees).unwrap_or_default())
    }
}

/// The part of an account's journal that a key may see: its own lines or, if its scope names the
/// account, all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct JournalView<'a> {
    key: &'a KeyRecord,
    is_of_account: bool,
}

impl<'a> JournalView<'a> {
    /// Returns what a caller may see.
    pub(super) fn of_caller(caller: &'a AuthenticatedCaller) -> JournalView<'a> {
        JournalView::of_key(&caller.key)
    }

    /// Returns what a key may see.
    pub(super) fn of_key(key: &'a KeyRecord) -> JournalView<'a> {
        JournalView { key, is_of_account: scope_check::sees_account(&key.scope) }
    }

    /// Returns the sums of usage that may be seen; `None` if all of the account's may.
    pub(super) fn own_rows(&self) -> Option<UsageRows> {
        (!self.is_of_account).then_some(UsageRows::Key(self.key.id))
    }

    /// Whether a line may be seen. A key that was rotated has the id of the one before it. Lines of
    /// older versions have no such id, only the beginning of their key. An expiry is of no key.
    pub(super) fn shows(&self, line: &ShownLine) -> bool {
        let is_own = match line.key_id {
            Some(id) => id == self.key.id,
            None => line.key_prefix.as_deref() == Some(self.key.prefix.as_str()),
        };
        self.is_of_account || is_own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::EntryKind;
    use crate::ledger::key::ApiKey;
    use crate::ledger::{AccountName, KeyScope};
    use crate::money::Money;

    fn key(bits: u8, scope: KeyScope) -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        KeyRecord::new(&ApiKey::from_random([bits; 32]), account, 1, scope)
    }

    fn line(json: &str) -> ShownLine {
        let (kind, amount) = (EntryKind::Charge, Money::ZERO);
        let entry =
            JournalEntry { seq: 1, kind, amount, written_off: Money::ZERO, line: json.to_owned() };
        ShownLine::parse(&entry).expect("a line")
    }

    #[test]
    fn a_key_sees_its_own_lines_and_one_for_the_account_sees_all() {
        let own = key(1, KeyScope::default());
        let rotated = key(2, KeyScope { id: Some(own.id), ..KeyScope::default() });
        let other = key(3, KeyScope::default());
        let with = |names: &[&str]| {
            let endpoints = names.iter().map(|name| (*name).to_owned()).collect();
            key(4, KeyScope { endpoints, ..KeyScope::default() })
        };
        let (wide, narrow) = (with(&["chat", "account"]), with(&["chat"]));
        let new = format!(r#"{{"request_id":"r","at":1,"key_prefix":"k","key_id":{}}}"#, own.id.0);
        let old = format!(r#"{{"request_id":"r","at":1,"key_prefix":"{}"}}"#, own.prefix);
        let correction = format!(
            r#"{{"corrects":"r","correction":"t","reason":"","at":1,"key_id":{}}}"#,
            own.id.0
        );
        let nobodys = r#"{"corrects":"r","correction":"t","reason":"","at":1}"#;
        let expiry = r#"{"expired":"9/promotion","at":9}"#;
        for (text, call, seen_by) in [
            (new.as_str(), Some("r"), [true, true, false, true, false]),
            (old.as_str(), Some("r"), [true, false, false, true, false]),
            (correction.as_str(), Some("r"), [true, true, false, true, false]),
            (nobodys, Some("r"), [false, false, false, true, false]),
            (expiry, None, [false, false, false, true, false]),
        ] {
            let line = line(text);
            assert_eq!(line.call_id(), call);
            let sees = |key: &KeyRecord| JournalView::of_key(key).shows(&line);
            assert_eq!([&own, &rotated, &other, &wide, &narrow].map(sees), seen_by, "{text}");
        }
    }
}
