//! A statement, and its canonical JSON: one line, whose members have an order. A sealed statement
//! is this text, and its digest is that of these bytes.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::month::StatementMonth;
use super::totals::{StatementFault, StatementTotals};
use crate::hex::to_hex;
use crate::ledger::{AccountName, push_number, push_string};
use crate::money::Money;

/// The version of the JSON. A change of what a member means raises it.
const DOCUMENT_VERSION: u32 = 1;

/// What was charged for a model in a month.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct StatementModel {
    /// The model's id; empty for lines that name none.
    pub(crate) model: String,
    /// The number of charges.
    pub(crate) calls: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    /// The part of the prompt that was read from a cache.
    pub(crate) cached_tokens: u64,
    pub(crate) characters: u64,
    pub(crate) images: u64,
    /// Seconds of video.
    pub(crate) seconds: u64,
    #[serde(rename = "charged_nano")]
    pub(crate) charged: Money,
    /// The versions of the prices of these charges, in order.
    pub(crate) price_versions: Vec<String>,
}

/// A statement of an account. Amounts are in nano-USD.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Statement {
    pub(crate) account: String,
    /// The month, as in `2026-11`.
    pub(crate) month: String,
    /// The first day, and the first day after it.
    pub(crate) from: String,
    pub(crate) to: String,
    #[serde(rename = "opening_nano")]
    pub(crate) opening: i64,
    /// What happened in the month.
    #[serde(flatten)]
    pub(crate) month_totals: StatementTotals,
    #[serde(rename = "closing_nano")]
    pub(crate) closing: i64,
    pub(crate) models: Vec<StatementModel>,
    /// All that has happened until the end of the month.
    #[serde(rename = "since_opened")]
    pub(crate) all_totals: StatementTotals,
    /// The number of lines that the journal had.
    pub(crate) journal_lines: u64,
}

/// What a stored statement says of itself.
#[derive(Debug, Deserialize)]
struct StatementHead {
    version: u32,
    account: String,
    month: String,
}

impl Statement {
    /// Parses a stored statement, which must be one of this version for this account and month.
    pub(crate) fn parse_stored(
        json: &str,
        account: &AccountName,
        month: StatementMonth,
    ) -> Result<Statement, StatementFault> {
        let head: Option<StatementHead> = serde_json::from_str(json).ok();
        let is_right = head.is_some_and(|head| {
            let names = (head.account.as_str(), head.month);
            head.version == DOCUMENT_VERSION && names == (account.as_str(), month.to_string())
        });
        if !is_right {
            return Err(StatementFault::Differs(format!(
                "the sealed statement {month} of account '{account}' is of another version, \
                 account or month"
            )));
        }
        Statement::parse(json)
    }

    /// Parses the JSON of a statement.
    pub(crate) fn parse(json: &str) -> Result<Statement, StatementFault> {
        serde_json::from_str(json).map_err(|why| {
            StatementFault::Differs(format!("a sealed statement cannot be read: {why}"))
        })
    }

    /// Returns the month; `None` if the text is none.
    pub(crate) fn statement_month(&self) -> Option<StatementMonth> {
        StatementMonth::parse(&self.month).ok()
    }

    /// Writes the statement as JSON.
    pub(crate) fn to_json(&self) -> String {
        let mut json = String::with_capacity(2_048);
        push_number(&mut json, r#"{"version":"#, DOCUMENT_VERSION);
        push_string(&mut json, r#","account":"#, &self.account);
        push_string(&mut json, r#","month":"#, &self.month);
        push_string(&mut json, r#","from":"#, &self.from);
        push_string(&mut json, r#","to":"#, &self.to);
        push_string(&mut json, r#","currency":"#, "USD");
        push_amount(&mut json, r#",""#, "opening", self.opening);
        push_totals(&mut json, r#",""#, &self.month_totals);
        push_amount(&mut json, r#",""#, "closing", self.closing);
        json.push_str(r#","models":["#);
        for (at, model) in self.models.iter().enumerate() {
            push_model(&mut json, if at == 0 { "{" } else { ",{" }, model);
        }
        json.push_str(r#"],"since_opened":"#);
        push_totals(&mut json, r#"{""#, &self.all_totals);
        push_number(&mut json, r#"},"journal_lines":"#, self.journal_lines);
        json.push('}');
        json
    }
}

/// Returns the SHA-256 of a text, in hexadecimal digits.
pub(crate) fn digest_of(text: &str) -> String {
    to_hex(&Sha256::digest(text))
}

/// Returns an amount as a decimal text in USD.
pub(crate) fn usd_text(nano: i64) -> String {
    let sign = if nano < 0 { "-" } else { "" };
    let size = Money::from_nano(nano.checked_abs().unwrap_or(i64::MAX)).unwrap_or_default();
    format!("{sign}{size}")
}

fn push_totals(json: &mut String, opening: &str, totals: &StatementTotals) {
    let mut before = opening;
    for (name, value) in StatementTotals::NAMES.into_iter().zip(totals.values()) {
        push_amount(json, before, name, value.nano());
        before = r#",""#;
    }
}

/// Writes an amount in nano-USD and in USD. `before` ends with the quote before the name.
fn push_amount(json: &mut String, before: &str, name: &str, nano: i64) {
    push_number(json, &[before, name, r#"_nano":"#].concat(), nano);
    push_string(json, &[r#",""#, name, r#"_usd":"#].concat(), &usd_text(nano));
}

fn push_model(json: &mut String, before: &str, model: &StatementModel) {
    json.push_str(before);
    push_string(json, r#""model":"#, &model.model);
    for (name, count) in model.counts() {
        push_number(json, &[r#",""#, name, r#"":"#].concat(), count);
    }
    push_amount(json, r#",""#, "charged", model.charged.nano());
    json.push_str(r#","price_versions":["#);
    for (at, version) in model.price_versions.iter().enumerate() {
        push_string(json, if at == 0 { "" } else { "," }, version);
    }
    json.push_str("]}");
}

impl StatementModel {
    /// Returns the counts with their names.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 7] {
        [
            ("calls", self.calls),
            ("prompt_tokens", self.prompt_tokens),
            ("completion_tokens", self.completion_tokens),
            ("cached_tokens", self.cached_tokens),
            ("characters", self.characters),
            ("images", self.images),
            ("seconds", self.seconds),
        ]
    }
}
