//! The journal of an account: each charge, and what it was for.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::book_name::BookName;
use super::json_text::{push_number, push_string};
use super::prepaid::records::{JournalRecord, RecordKind};
use super::prepaid::window::KeyId;
use crate::money::fee::ChargedFee;
use crate::money::{BilledUnits, Money, TokenUsage, Usage, UsageBasis};

/// What an entry of the journal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EntryKind {
    /// A charge: P grows by the amount, and W by the part that the account could not pay.
    #[default]
    Charge,
    /// A part of a charge was given back: P falls by the amount, and W by the part of it that the
    /// account had not paid.
    Correction,
    /// Granted credit has expired: C and A fall by the amount.
    Expiry,
}

impl EntryKind {
    /// Returns the name, as in `charge`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EntryKind::Charge => "charge",
            EntryKind::Correction => "correction",
            EntryKind::Expiry => "expiry",
        }
    }
}

/// A charge, a correction of one, or an expiry, as it is in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The number of the entry in the account's journal, from 1.
    pub seq: u64,
    /// What it is about.
    pub kind: EntryKind,
    /// The amount that was posted, was given back, or has expired.
    pub amount: Money,
    /// The part of the amount that the account could not pay.
    pub written_off: Money,
    /// The journal line, as JSON.
    pub line: String,
}

impl From<JournalRecord> for JournalEntry {
    fn from(record: JournalRecord) -> JournalEntry {
        let kind = match record.kind {
            RecordKind::Charge => EntryKind::Charge,
            RecordKind::Correction(_) => EntryKind::Correction,
            RecordKind::Expiry(_) => EntryKind::Expiry,
        };
        let JournalRecord { seq, amount, written_off, line, .. } = record;
        JournalEntry { seq, kind, amount, written_off, line }
    }
}

/// The content of a journal line. The amount is stored beside the line, as an exact number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JournalLine<'a> {
    /// The id of the request, and of its hold.
    pub request_id: Cow<'a, str>,
    /// When the call was settled, in unix ms.
    pub at: i64,
    /// The beginning of the API key.
    pub key_prefix: Cow<'a, str>,
    /// The id of the API key; `None` in a line of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// The endpoint's short name.
    pub endpoint: Cow<'a, str>,
    /// The model's id.
    pub model: Cow<'a, str>,
    /// The name by which the client asked for the model, if that is not the model's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_model: Option<Cow<'a, str>>,
    /// The vendor's token.
    pub vendor: Cow<'a, str>,
    /// The name of the route that served the call.
    pub route: Cow<'a, str>,
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
    /// The fees for the vendor's tools that are in the amount; empty in most lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fees: Vec<ChargedFee>,
    /// The version of the prices that were applied.
    pub price_version: Cow<'a, str>,
    /// The price book by which the account was charged; `None` if it pays the list prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub book: Option<Cow<'a, str>>,
    /// What `usage` and `fees` cost at list prices, in nano-USD, if the account has a price book.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_nano: Option<i64>,
    /// What the vendor charges for `usage` and `fees`, in nano-USD, if the rules know that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano: Option<i64>,
    /// The vendor's id of the request, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_request_id: Option<Cow<'a, str>>,
    /// The id of the reply as the client got it, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_id: Option<Cow<'a, str>>,
    /// The digest of the call's content in base64, if its client may try it again by itself. A
    /// retry finds by it that the call was charged, even if its reply is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_digest: Option<Cow<'a, str>>,
    /// The windows of budgets in which the charge counts, with commas between them. The store adds
    /// them when it posts the charge; no gateway writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Cow<'a, str>>,
    /// How far the part of the charge above its hold is above a budget, in nano-USD. The store adds
    /// it when it posts the charge; no gateway writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_budget_nano: Option<i64>,
}

/// What a journal line says of a call or a video job: who asked for what, and who served it.
#[derive(Debug)]
pub(crate) struct ServedCall<'a> {
    /// The id of the hold, which is that of the request or of the job.
    pub request_id: &'a str,
    /// The beginning of the API key.
    pub key_prefix: &'a str,
    /// The id of the API key; `None` in a job of an older version.
    pub key_id: Option<KeyId>,
    /// The endpoint's short name.
    pub endpoint: &'a str,
    /// The model's id.
    pub model: &'a str,
    /// The name by which the client asked for the model, if that is not the model's id.
    pub requested_model: Option<&'a str>,
    /// The vendor's token.
    pub vendor: &'a str,
    /// The name of the route that served the call.
    pub route: &'a str,
    /// How many routes failed before the one that served.
    pub depth: u32,
    /// The vendor's id of the request, if it sent one.
    pub vendor_request_id: Option<&'a str>,
    /// The id of the reply as the client got it, if it has one.
    pub reply_id: Option<&'a str>,
    /// The digest by which a retry finds the line; `None` if no client tries again by itself.
    pub retry_digest: Option<String>,
}

/// What a journal line says of what was used, and of the prices of the charge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PricedUsage<'a> {
    /// When the call was settled, in unix ms.
    pub at: i64,
    /// The billed units, and where they come from.
    pub usage: Usage,
    /// The usage that the vendor reported, if it was rejected.
    pub rejected: Option<BilledUnits>,
    /// The version of the prices that were applied.
    pub price_version: &'a str,
    /// The price book of the charge; `None` if it was made at list prices.
    pub booked: Option<BookedAmount<'a>>,
    /// What the vendor charges, if the rules know that.
    pub cost: Option<Money>,
}

/// A price book, and what is charged by it at list prices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BookedAmount<'a> {
    /// The name of the book.
    pub book: &'a BookName,
    /// The amount at list prices.
    pub list: Money,
}

/// The memory that most lines need, in bytes.
const LINE_BYTES: usize = 640;

impl<'a> JournalLine<'a> {
    /// Makes the line of a call or a video job. All lines that are written are made here.
    #[must_use]
    pub(crate) fn new(call: ServedCall<'a>, used: PricedUsage<'a>) -> JournalLine<'a> {
        JournalLine {
            request_id: call.request_id.into(),
            at: used.at,
            key_prefix: call.key_prefix.into(),
            key_id: call.key_id,
            endpoint: call.endpoint.into(),
            model: call.model.into(),
            requested_model: call.requested_model.map(Cow::Borrowed),
            vendor: call.vendor.into(),
            route: call.route.into(),
            depth: call.depth,
            usage: used.usage.units,
            basis: used.usage.basis,
            rejected_usage: used.rejected,
            fees: Vec::new(),
            price_version: used.price_version.into(),
            book: used.booked.map(|booked| booked.book.as_str().into()),
            list_nano: used.booked.map(|booked| booked.list.nano()),
            cost_nano: used.cost.map(Money::nano),
            vendor_request_id: call.vendor_request_id.map(Cow::Borrowed),
            reply_id: call.reply_id.map(Cow::Borrowed),
            retry_digest: call.retry_digest.map(Cow::Owned),
            windows: None,
            over_budget_nano: None,
        }
    }
}

impl JournalLine<'_> {
    /// Writes the line as JSON, as `serde_json` would. Every call has a line, so the names of its
    /// members are copied as they are.
    pub(crate) fn to_json(&self) -> String {
        let mut json = String::with_capacity(LINE_BYTES);
        push_string(&mut json, r#"{"request_id":"#, &self.request_id);
        push_number(&mut json, r#","at":"#, self.at);
        push_string(&mut json, r#","key_prefix":"#, &self.key_prefix);
        if let Some(KeyId(id)) = self.key_id {
            push_number(&mut json, r#","key_id":"#, id);
        }
        push_string(&mut json, r#","endpoint":"#, &self.endpoint);
        push_string(&mut json, r#","model":"#, &self.model);
        push_optional(&mut json, r#","requested_model":"#, self.requested_model.as_deref());
        push_string(&mut json, r#","vendor":"#, &self.vendor);
        push_string(&mut json, r#","route":"#, &self.route);
        push_number(&mut json, r#","depth":"#, self.depth);
        push_units(&mut json, r#","usage":"#, self.usage);
        push_string(&mut json, r#","basis":"#, self.basis.name());
        if let Some(rejected) = self.rejected_usage {
            push_units(&mut json, r#","rejected_usage":"#, rejected);
        }
        if !self.fees.is_empty() {
            json.push_str(r#","fees":"#);
            // Fees can always be written as JSON. Few calls have any.
            json.push_str(&serde_json::to_string(&self.fees).unwrap_or_default());
        }
        push_string(&mut json, r#","price_version":"#, &self.price_version);
        push_optional(&mut json, r#","book":"#, self.book.as_deref());
        push_optional_number(&mut json, r#","list_nano":"#, self.list_nano);
        push_optional_number(&mut json, r#","cost_nano":"#, self.cost_nano);
        push_optional(&mut json, r#","vendor_request_id":"#, self.vendor_request_id.as_deref());
        push_optional(&mut json, r#","reply_id":"#, self.reply_id.as_deref());
        push_optional(&mut json, r#","retry_digest":"#, self.retry_digest.as_deref());
        push_optional(&mut json, r#","windows":"#, self.windows.as_deref());
        push_optional_number(&mut json, r#","over_budget_nano":"#, self.over_budget_nano);
        json.push('}');
        json
    }
}

/// Appends a member with a text, if there is one.
fn push_optional(json: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        push_string(json, name, value);
    }
}

/// Appends a member with a number, if there is one.
fn push_optional_number(json: &mut String, name: &str, value: Option<i64>) {
    if let Some(value) = value {
        push_number(json, name, value);
    }
}

/// Appends a member with billed units.
fn push_units(json: &mut String, name: &str, units: BilledUnits) {
    json.push_str(name);
    let BilledUnits::Tokens(tokens) = units else {
        // Units can always be written as JSON. Few calls have units other than tokens.
        json.push_str(&serde_json::to_string(&units).unwrap_or_default());
        return;
    };
    let TokenUsage { input, output, cache_read, cache_write, cache_write_1h } = tokens;
    push_number(json, r#"{"prompt_tokens":"#, input);
    push_number(json, r#","completion_tokens":"#, output);
    let parts = [
        (r#","cached_tokens":"#, cache_read),
        (r#","cache_write_tokens":"#, cache_write),
        (r#","cache_write_1h_tokens":"#, cache_write_1h),
    ];
    for (name, tokens) in parts {
        if tokens != 0 {
            push_number(json, name, tokens);
        }
    }
    json.push('}');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::money::VideoResolution;

    fn tokens() -> impl Strategy<Value = BilledUnits> {
        // Zeros are left out of a line, so they have to come up.
        let part = || prop_oneof![Just(0_u64), any::<u64>()];
        (part(), part(), part(), part(), part()).prop_map(
            |(input, output, cache_read, cache_write, cache_write_1h)| {
                let tokens = TokenUsage { input, output, cache_read, cache_write, cache_write_1h };
                BilledUnits::Tokens(tokens)
            },
        )
    }

    fn units() -> impl Strategy<Value = BilledUnits> {
        let resolution = prop::sample::select(VideoResolution::ALL.to_vec());
        prop_oneof![
            4 => tokens(),
            1 => any::<u64>().prop_map(|characters| BilledUnits::Characters { characters }),
            1 => any::<(u64, u64)>()
                .prop_map(|(images, ticks)| BilledUnits::BilledImages { images, ticks }),
            1 => any::<u64>().prop_map(|images| BilledUnits::Images { images }),
            1 => (any::<u64>(), resolution, any::<Option<u64>>()).prop_map(
                |(seconds, resolution, ticks)| BilledUnits::Video { seconds, resolution, ticks },
            ),
        ]
    }

    fn line() -> impl Strategy<Value = JournalLine<'static>> {
        let bases = vec![UsageBasis::Reported, UsageBasis::Counted, UsageBasis::Fixed];
        let texts = prop::collection::vec("(?s).{0,20}", 7);
        let optional_texts = prop::collection::vec(proptest::option::of("(?s).{0,20}"), 6);
        let numbers = (any::<i64>(), any::<Option<u64>>(), any::<u32>(), any::<[Option<i64>; 2]>());
        let told = (any::<Option<u64>>(), any::<bool>());
        let fee = ("(?s).{0,9}", any::<u64>(), 0..i64::MAX, told);
        let fee = fee.prop_map(|(name, uses, nano, (rejected_uses, assumed))| {
            let amount = Money::from_nano(nano).expect("money");
            ChargedFee { name, uses, amount, rejected_uses, assumed }
        });
        let fees = prop::collection::vec(fee, 0..3);
        let used = (units(), prop::sample::select(bases), proptest::option::of(units()), fees);
        (texts, optional_texts, numbers, used).prop_map(|(texts, optional, numbers, used)| {
            let text = |at: usize| Cow::<str>::Owned(texts[at].clone());
            let optional = |at: usize| optional[at].clone().map(Cow::<str>::Owned);
            JournalLine {
                request_id: text(0),
                at: numbers.0,
                key_prefix: text(1),
                key_id: numbers.1.map(KeyId),
                endpoint: text(2),
                model: text(3),
                requested_model: optional(0),
                vendor: text(4),
                route: text(5),
                depth: numbers.2,
                usage: used.0,
                basis: used.1,
                rejected_usage: used.2,
                fees: used.3,
                price_version: text(6),
                book: optional(5),
                list_nano: numbers.3[0],
                cost_nano: numbers.3[1],
                vendor_request_id: optional(1),
                reply_id: optional(2),
                retry_digest: optional(3),
                windows: optional(4),
                over_budget_nano: numbers.1.map(|_| numbers.0),
            }
        })
    }

    proptest! {
        #[test]
        fn a_line_is_the_same_text_however_it_is_written(line in line()) {
            let expected = serde_json::to_string(&line).expect("JSON");
            prop_assert_eq!(line.to_json(), expected);
        }
    }

    #[test]
    fn a_line_of_before_a_report_could_be_rejected_is_read_and_written_as_it_was() {
        let old = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine<'_> = serde_json::from_str(old).expect("a line");
        assert_eq!(line.rejected_usage, None);
        assert_eq!(line.to_json(), old);
        let tokens = TokenUsage { input: 3, output: 900_000_000, ..Default::default() };
        let rejected_usage = Some(BilledUnits::Tokens(tokens));
        let written = JournalLine { rejected_usage, ..line }.to_json();
        let read: JournalLine<'_> = serde_json::from_str(&written).expect("a line");
        assert_eq!(read.rejected_usage, rejected_usage);
    }

    #[test]
    fn a_line_of_before_keys_had_ids_is_read_and_a_new_one_has_the_id() {
        let old = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine<'_> = serde_json::from_str(old).expect("a line");
        assert_eq!(line.key_id, None);
        let key_id = Some(KeyId(u64::MAX >> 1));
        let written = JournalLine { key_id, ..line }.to_json();
        let expected = old
            .replace(r#""key_prefix":"k","#, r#""key_prefix":"k","key_id":9223372036854775807,"#);
        assert_eq!(written, expected);
        let read: JournalLine<'_> = serde_json::from_str(&written).expect("a line");
        assert_eq!(read.key_id, key_id);
    }

    #[test]
    fn a_line_tells_its_book_and_its_cost_only_if_there_are_any() {
        let plain = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine<'_> = serde_json::from_str(plain).expect("a line");
        assert_eq!((&line.book, line.list_nano, line.cost_nano), (&None, None, None));
        let cost_nano = Some(0);
        let bought = JournalLine { cost_nano, ..line.clone() }.to_json();
        assert_eq!(bought, plain.replace("\"p\"}", r#""p","cost_nano":0}"#));
        let booked = JournalLine { book: Some("b".into()), list_nano: Some(7), cost_nano, ..line };
        let expected = plain.replace("\"p\"}", r#""p","book":"b","list_nano":7,"cost_nano":0}"#);
        assert_eq!(booked.to_json(), expected);
    }

    #[test]
    fn a_line_has_the_requested_name_beside_the_id_only_if_they_differ() {
        let by_id = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine<'_> = serde_json::from_str(by_id).expect("a line");
        assert_eq!(line.requested_model, None);
        let requested_model = Some("m-2025".into());
        let line = JournalLine { requested_model, ..line };
        let by_alias =
            by_id.replace(r#""model":"m","#, r#""model":"m","requested_model":"m-2025","#);
        assert_eq!(line.to_json(), by_alias);
        let read: JournalLine<'_> = serde_json::from_str(&by_alias).expect("a line");
        assert_eq!(read.requested_model.as_deref(), Some("m-2025"));
    }
}
