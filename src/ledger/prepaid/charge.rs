//! Posts a charge: from the lots of its hold, then from what is available, then from W.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::draft::AccountDraft;
use super::lot::LotAmounts;
use super::records::{JournalRecord, RecordKind};
use super::window::{KeyId, WindowId, format_windows};
use crate::ledger::json_text::{push_number, push_string};
use crate::money::{Money, MoneyError};

/// The call of a charge, as the journal names it.
#[derive(Clone, Copy)]
pub(crate) struct ChargedCall<'a> {
    /// The id of the call.
    pub request: &'a str,
    /// The key of the call.
    pub key: Option<KeyId>,
    /// The windows in which the hold was made.
    pub windows: &'a [WindowId],
    /// The journal line, as JSON.
    pub line: &'a str,
}

/// How a charge was paid.
pub(crate) struct PaidCharge {
    /// The part that the account could not pay.
    pub written_off: Money,
    /// How far the part above the hold is above a limit.
    pub over_budget: Money,
}

/// Returns a journal line that tells in which windows its charge counts, how far it is above a
/// limit, and which granted credit has paid it. Only a store knows that, so these members come last
/// into the JSON of the gateway. A line that is no object stays as it is.
fn complete_line(
    line: &str,
    windows: &[WindowId],
    over_budget: Money,
    lots: &LotAmounts,
) -> String {
    let granted = lots.to_text();
    let has_more = !windows.is_empty() || !granted.is_empty();
    let Some(rest) = line.strip_suffix('}').filter(|_| has_more) else {
        return line.to_owned();
    };
    let texts = format_windows(windows);
    let mut json = String::with_capacity(line.len() + texts.len() + granted.len() + 64);
    json.push_str(rest);
    if !windows.is_empty() {
        push_string(&mut json, r#","windows":"#, &texts);
    }
    if over_budget > Money::ZERO {
        push_number(&mut json, r#","over_budget_nano":"#, over_budget.nano());
    }
    if !granted.is_empty() {
        push_string(&mut json, r#","lots":"#, &granted);
    }
    json.push('}');
    json
}

/// Posts `amount`, of which `covered` was held, and writes its line.
pub(crate) fn post(
    draft: &mut AccountDraft<'_>,
    call: ChargedCall<'_>,
    covered: LotAmounts,
    amount: Money,
) -> Result<PaidCharge, MoneyError> {
    let above_hold = amount.checked_sub(covered.total()?)?;
    let mut lots = covered;
    draft.post_drawn(&lots)?;
    let (paid, written_off) = draft.post_available(above_hold)?;
    lots.merge(&paid)?;
    let mut over_budget = Money::ZERO;
    for window in call.windows {
        over_budget = over_budget.max(draft.spend(*window, amount)?.min(above_hold));
    }
    let line = complete_line(call.line, call.windows, over_budget, &lots);
    draft.append(JournalRecord {
        seq: 0,
        posted_at: 0,
        kind: RecordKind::Charge,
        request: call.request.to_owned(),
        key: call.key,
        amount,
        written_off,
        over_budget,
        lots,
        windows: call.windows.to_vec(),
        line,
    });
    Ok(PaidCharge { written_off, over_budget })
}
