//! Grants: credit that has a source and may expire.

use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::ManagementError;
use super::expiry::{not_in_the_future, time_text};
use super::payments::{Transfer, audited, refused, used_before};
use super::webhooks::tell_balance;
use crate::ledger::{
    CreditSource, LotId, NEVER_EXPIRES, OPEN_LOTS_MAX, OpenLot, Operation, Outcome,
};

/// Credit expires at most this long after it is granted, in seconds: ten years.
const EXPIRY_MAX_S: i64 = 3_653 * 24 * 60 * 60;
/// The number of entries that are read at a time.
const PAGE_SIZE: u32 = 1_000;

/// Returns the lot of credit with a source that expires at a time (unix seconds), or never. The
/// time must be after `now`, and at most ten years after it.
pub(crate) fn check_lot(
    source: CreditSource,
    expires_at: Option<i64>,
    now: i64,
) -> Result<LotId, ManagementError> {
    let invalid = |message: String| Err(ManagementError::Invalid { field: "expires_at", message });
    let last = now.saturating_add(EXPIRY_MAX_S);
    match expires_at {
        None if source == CreditSource::Paid => {
            let what =
                "paid credit that never expires is a payment: add a payment, or give an expiry";
            invalid(what.to_owned())
        }
        None => Ok(LotId { expires_at: NEVER_EXPIRES, source }),
        Some(at) if at <= now => invalid(not_in_the_future("the expiry", &time_text(at), now)),
        Some(at) if at > last => {
            let (shown, last) = (time_text(at), time_text(last));
            let what = "is more than ten years away: give a time up to";
            invalid(format!("the expiry '{shown}' {what} {last}"))
        }
        Some(at) => Ok(LotId { expires_at: at.saturating_mul(1_000), source }),
    }
}

/// Parses the name of a source.
pub(crate) fn parse_source(text: &str) -> Result<CreditSource, ManagementError> {
    CreditSource::of_name(text).ok_or_else(|| {
        let names = CreditSource::ALL.map(CreditSource::as_str).join(", ");
        let message = format!("'{text}' is no source of credit; the sources are {names}");
        ManagementError::Invalid { field: "source", message }
    })
}

/// Adds credit to a lot of an account. A grant that was made before, under the same id, is no
/// error.
pub(crate) async fn grant_credit(
    context: ManagementContext<'_>,
    grant: &Transfer,
    lot: LotId,
) -> Result<(), ManagementError> {
    let (ledger, account) = (context.ledger(), &grant.account);
    let granting = async || {
        let op = Operation::Grant { tx: grant.tx.clone(), amount: grant.amount, lot };
        match ledger.submit(account, op).await? {
            Outcome::Done | Outcome::AlreadyDone => Ok(()),
            Outcome::Conflict => Err(used_before(format!(
                "the id '{}' was used before, for another grant, payment, refund or correction",
                grant.tx
            ))),
            // It is certain that nothing was granted, also if the lots cannot be read.
            Outcome::TooManyLots => {
                Err(too_many_lots(&ledger.list_lots(account).await.unwrap_or_default()))
            }
            other => Err(refused(account, &other)),
        }
    };
    let change = AuditedChange { lot: Some(lot), ..audited(grant, "credit.grant") };
    context.change(&change, granting).await?;
    tell_balance(context.store, account).await;
    Ok(())
}

/// Finds the lot of a grant that was made before with this id, amount and source; `None` if there
/// is none. So a grant whose expiry was given as a time from now can be repeated.
pub(crate) async fn find_granted_lot(
    context: ManagementContext<'_>,
    grant: &Transfer,
    source: CreditSource,
) -> Result<Option<LotId>, ManagementError> {
    let mut skipped = 0;
    loop {
        let page = context.ledger().list_transfers(&grant.account, skipped, PAGE_SIZE).await?;
        if page.is_empty() {
            return Ok(None);
        }
        if let Some(known) = page.iter().find(|entry| entry.tx == grant.tx) {
            let lot = known.lot.filter(|lot| lot.source == source && known.amount == grant.amount);
            return Ok(lot);
        }
        skipped = skipped.saturating_add(page.len() as u64);
    }
}

/// Returns when a lot expires, in the format of RFC 3339; `None` if it never does.
pub(crate) fn expiry_text(lot: LotId) -> Option<String> {
    let at = Some(lot.expires_at).filter(|at| *at != NEVER_EXPIRES)?;
    let moment = jiff::Timestamp::from_millisecond(at);
    Some(moment.map_or_else(|_| at.to_string(), |at| at.to_string()))
}

/// Returns the source of a lot and when it expires, for people.
pub(crate) fn describe_lot(lot: LotId) -> String {
    let source = lot.source.as_str();
    match expiry_text(lot) {
        Some(at) => format!("{source} until {at}"),
        None => source.to_owned(),
    }
}

/// Returns the error that an account has as many lots as it may have. `lots` are in the order in
/// which they are drawn.
fn too_many_lots(lots: &[OpenLot]) -> ManagementError {
    let most = OPEN_LOTS_MAX - 1;
    let first = lots.first().map(|lot| format!(" ({})", describe_lot(lot.id))).unwrap_or_default();
    let message = format!(
        "the account has {most} lots of granted credit, and may have no more: grant with the \
         source and the expiry of one of them, or wait until the first one{first} is used up or \
         expires"
    );
    ManagementError::Conflict { code: "too_many_lots", message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::CreditLot;

    /// 2026-11-25 13:14:15 UTC.
    const NOW: i64 = 1_795_612_455;

    #[test]
    fn granted_credit_expires_within_ten_years_or_never() {
        let of = |source, at| check_lot(source, at, NOW);
        let promotion = CreditSource::Promotion;
        let soon = of(promotion, Some(NOW + 1)).expect("a lot");
        assert_eq!(soon, LotId { expires_at: (NOW + 1) * 1_000, source: promotion });
        assert_eq!(describe_lot(soon), "promotion until 2026-11-25T13:14:16Z");
        let never = of(CreditSource::Voucher, None).expect("a lot");
        assert_eq!((never.expires_at, describe_lot(never)), (NEVER_EXPIRES, "voucher".to_owned()));
        assert!(of(CreditSource::Paid, Some(NOW + EXPIRY_MAX_S)).is_ok());
        for (source, at, told) in [
            (
                promotion,
                Some(NOW),
                "the expiry '2026-11-25T13:14:15Z' is not in the future: give a time after \
                 2026-11-25T13:14:15Z",
            ),
            (promotion, Some(i64::MIN), "'-9223372036854775808' is not in the future"),
            (
                promotion,
                Some(NOW + EXPIRY_MAX_S + 1),
                "the expiry '2036-11-25T13:14:16Z' is more than ten years away: give a time up to \
                 2036-11-25T13:14:15Z",
            ),
            (promotion, Some(i64::MAX), "'9223372036854775807' is more than ten years away"),
            (CreditSource::Paid, None, "is a payment"),
        ] {
            let why = of(source, at).expect_err("no lot");
            assert!(matches!(why, ManagementError::Invalid { field: "expires_at", .. }));
            assert!(why.to_string().contains(told), "{at:?}: {why}");
        }
    }

    #[test]
    fn a_source_has_one_of_three_names() {
        for source in CreditSource::ALL {
            assert_eq!(parse_source(source.as_str()).expect("a source"), source);
        }
        let why = parse_source("gift").expect_err("no source").to_string();
        assert_eq!(why, "'gift' is no source of credit; the sources are promotion, voucher, paid");
    }

    #[test]
    fn an_account_with_too_many_lots_is_told_which_one_ends_first() {
        let id = check_lot(CreditSource::Promotion, Some(NOW + 60), NOW).expect("a lot");
        let lots = [OpenLot { id, lot: CreditLot::default() }];
        let why = too_many_lots(&lots).to_string();
        assert!(why.contains("has 15 lots"), "{why}");
        assert!(why.contains("the first one (promotion until 2026-11-25T13:15:15Z) is"), "{why}");
        assert!(too_many_lots(&[]).to_string().contains("the first one is used up"));
    }
}
