//! Converts operations on an account into script calls, and the scripts' replies into outcomes.

use redis::{FromRedisValue, Value};

use super::keys::AccountKeys;
use super::rate_texts::{format_asks, held_outcome, parse_rate_limited};
use super::scripts::ScriptCall;
use crate::ledger::prepaid::correct::ChargeCorrection;
use crate::ledger::prepaid::transfer::TAKE_WAIT_MS;
use crate::ledger::{HoldRequest, KeyId, Operation, Outcome, Unavailable};
use crate::money::Money;

/// Returns the keys and arguments of an operation's script.
pub(super) fn operation_call(keys: &AccountKeys, op: &Operation) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(keys.account());
    if let Some(id) = op.hold_id() {
        call.key(keys.hold(id)).key(keys.open_holds()).arg(id);
    }
    match op {
        Operation::Credit { tx, amount } => {
            call.key(keys.payments()).key(keys.transfers()).key(keys.transfer_times());
            call.arg(tx).arg(amount.nano());
        }
        Operation::Grant { tx, amount, lot } => {
            call.key(keys.payments()).key(keys.transfers()).key(keys.journal());
            call.key(keys.transfer_times()).arg(tx).arg(amount.nano()).arg(lot.to_string());
        }
        Operation::Take { tx, amount, reason } => {
            call.key(keys.payments()).key(keys.transfers()).key(keys.transfer_times());
            call.arg(tx).arg(amount.nano()).arg(reason).arg(TAKE_WAIT_MS);
        }
        Operation::Correct { tx, request, found, amount, reason } => {
            call.key(keys.payments()).key(keys.transfers()).key(keys.corrected());
            call.key(keys.journal()).key(keys.transfer_times());
            call.arg(tx).arg(request).arg(amount.nano()).arg(reason);
            call.arg(ChargeCorrection { tx, request, amount: *amount, reason }.line_head());
            for number in found {
                call.arg(*number);
            }
        }
        Operation::Hold { wanted, least, lease_ms, key, rates, .. } => {
            call.arg(wanted.nano()).arg(least.nano()).arg(*lease_ms).arg(key_text(*key));
            call.arg(format_asks(rates));
        }
        Operation::Extend { wanted, .. } => {
            call.arg(wanted.nano());
        }
        Operation::Renew { lease_ms, .. } => {
            call.arg(*lease_ms);
        }
        Operation::Checkpoint { charge, line, .. } => {
            call.arg("").arg(charge.nano()).arg(line);
        }
        Operation::Settle { charge, line, origin, tokens, .. } => {
            call.key(keys.journal()).arg(charge.nano()).arg(line);
            match tokens {
                Some(tokens) => call.arg(*tokens),
                None => call.arg(""),
            };
            if let Some(HoldRequest { wanted, least, at, key }) = origin {
                call.arg(wanted.nano()).arg(least.nano()).arg(*at).arg(key_text(*key));
            }
        }
        Operation::Void { .. } => {}
    }
    call
}

/// Returns the id of a call's API key as scripts get it: an empty text if there is none.
pub(super) fn key_text(key: Option<KeyId>) -> String {
    key.map(|KeyId(id)| id.to_string()).unwrap_or_default()
}

/// Converts a script's reply into strings.
pub(super) fn reply_strings(reply: &Value) -> Result<Vec<String>, Unavailable> {
    Vec::from_redis_value_ref(reply).map_err(|e| Unavailable(format!("unexpected answer: {e}")))
}

/// Parses a script's reply: a word that names the result, then amounts as digits, in nano-USD, and
/// perhaps the text of a window before them, or what rate limits have left after them.
pub(super) fn parse_outcome(reply: &[String]) -> Result<Outcome, Unavailable> {
    let amount = |at: usize| {
        let digits = reply.get(at).and_then(|w| w.parse().ok());
        digits
            .and_then(|nano| Money::from_nano(nano).ok())
            .ok_or_else(|| Unavailable(format!("unexpected answer: {reply:?}")))
    };
    Ok(match reply.first().map(String::as_str) {
        Some("done") => Outcome::Done,
        Some("exists") => Outcome::AlreadyDone,
        Some("conflict") => Outcome::Conflict,
        Some("held") => held_outcome(amount(1)?, reply.get(2..).unwrap_or_default())?,
        Some("rate_limited") => parse_rate_limited(reply.get(1..).unwrap_or_default())?,
        Some("hold_exists") => {
            let open = reply.get(2).is_some_and(|state| state == "open");
            Outcome::HoldExists { held: amount(1)?, open }
        }
        Some("held_in_part") => Outcome::HeldInPart(amount(1)?),
        Some("wait") => Outcome::Wait,
        Some("insufficient") => Outcome::Insufficient(amount(1)?),
        Some("budget_exceeded") => {
            let window = reply.get(1).and_then(|text| text.parse().ok());
            let window =
                window.ok_or_else(|| Unavailable(format!("unexpected answer: {reply:?}")))?;
            Outcome::BudgetExceeded { window, left: amount(2)? }
        }
        Some("budget_in_use") => Outcome::BudgetInUse(amount(1)?),
        Some("tombstoned") => Outcome::Tombstoned,
        Some("posted") => Outcome::Posted { amount: amount(1)?, written_off: amount(2)? },
        Some("already_posted") => Outcome::AlreadyPosted(amount(1)?),
        Some("voided") => Outcome::Voided,
        Some("gone") => Outcome::HoldEnded,
        Some("unknown") => Outcome::UnknownHold,
        Some("taken") => Outcome::Taken { taken: amount(1)?, uncovered: amount(2)? },
        Some("corrected") => Outcome::Corrected(amount(1)?),
        Some("too_many_lots") => Outcome::TooManyLots,
        Some("unknown_charge") => Outcome::UnknownCharge,
        Some("no_account") => Outcome::NoAccount,
        Some("deleted") => Outcome::AccountDeleted,
        Some("out_of_range") => Outcome::OutOfRange,
        _ => return Err(Unavailable(format!("unexpected answer: {reply:?}"))),
    })
}
