//! The journal of an account: each charge, and what it was for.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use super::prepaid::window::KeyId;
use crate::money::{BilledUnits, Money, UsageBasis};

/// A charge as it is in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The number of the entry in the account's journal, from 1.
    pub seq: u64,
    /// The amount that was posted.
    pub amount: Money,
    /// The part of the amount that the account could not pay.
    pub written_off: Money,
    /// The journal line, as JSON.
    pub line: String,
}

/// The content of a journal line. The amount is stored beside the line, as an exact number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JournalLine {
    /// The id of the request, and of its hold.
    pub request_id: String,
    /// When the call was settled, in unix ms.
    pub at: i64,
    /// The beginning of the API key.
    pub key_prefix: String,
    /// The id of the API key; `None` in a line of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// The endpoint's short name.
    pub endpoint: String,
    /// The model's id.
    pub model: String,
    /// The name by which the client asked for the model, if that is not the model's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_model: Option<String>,
    /// The vendor's token.
    pub vendor: String,
    /// The name of the route that served the call.
    pub route: String,
    /// How many routes failed before the one that served.
    pub depth: u32,
    /// The billed units.
    pub usage: BilledUnits,
    /// Where the units come from.
    pub basis: UsageBasis,
    /// The usage that the vendor reported, if it was implausible and was rejected; `usage` is then
    /// what the gateway counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_usage: Option<BilledUnits>,
    /// The version of the prices that were applied.
    pub price_version: String,
    /// The vendor's id of the request, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_request_id: Option<String>,
    /// The digest of the call's content in base64, if its client may try it again by itself. A
    /// retry finds by it that the call was charged, even if its reply is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_digest: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_before_a_report_could_be_rejected_is_read_and_written_as_it_was() {
        let old = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine = serde_json::from_str(old).expect("a line");
        assert_eq!(line.rejected_usage, None);
        assert_eq!(serde_json::to_string(&line).expect("JSON"), old);
        let tokens =
            crate::money::TokenUsage { input: 3, output: 900_000_000, ..Default::default() };
        let rejected_usage = Some(BilledUnits::Tokens(tokens));
        let written = serde_json::to_string(&JournalLine { rejected_usage, ..line }).expect("JSON");
        let read: JournalLine = serde_json::from_str(&written).expect("a line");
        assert_eq!(read.rejected_usage, rejected_usage);
    }

    #[test]
    fn a_line_of_before_keys_had_ids_is_read_and_a_new_one_has_the_id() {
        let old = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine = serde_json::from_str(old).expect("a line");
        assert_eq!(line.key_id, None);
        let key_id = Some(KeyId(u64::MAX >> 1));
        let written = serde_json::to_string(&JournalLine { key_id, ..line }).expect("JSON");
        let expected = old
            .replace(r#""key_prefix":"k","#, r#""key_prefix":"k","key_id":9223372036854775807,"#);
        assert_eq!(written, expected);
        let read: JournalLine = serde_json::from_str(&written).expect("a line");
        assert_eq!(read.key_id, key_id);
    }

    #[test]
    fn a_line_has_the_requested_name_beside_the_id_only_if_they_differ() {
        let by_id = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine = serde_json::from_str(by_id).expect("a line");
        assert_eq!(line.requested_model, None);
        let requested_model = Some("m-2025".to_owned());
        let line = JournalLine { requested_model, ..line };
        let by_alias =
            by_id.replace(r#""model":"m","#, r#""model":"m","requested_model":"m-2025","#);
        assert_eq!(serde_json::to_string(&line).expect("JSON"), by_alias);
        let read: JournalLine = serde_json::from_str(&by_alias).expect("a line");
        assert_eq!(read.requested_model.as_deref(), Some("m-2025"));
    }
}
