//! The errors of calls that a budget does not allow.

use crate::ledger::{BudgetOwner, WindowId, WindowKind};
use crate::money::Money;

pub(super) fn budget_exceeded_code(owner: BudgetOwner) -> &'static str {
    match owner {
        BudgetOwner::Account => "account_budget_exceeded",
        BudgetOwner::Key(_) => "key_budget_exceeded",
    }
}

pub(super) fn budget_exceeded_message(window: WindowId, least: Money, left: Money) -> String {
    let owner = match window.owner {
        BudgetOwner::Account => "account",
        BudgetOwner::Key(_) => "key",
    };
    let budget = match window.kind {
        WindowKind::Total => format!("the total budget of the {owner}"),
        kind => format!("the budget of the {owner} for this {}", kind.name()),
    };
    let resets_at = Some(window.end()).filter(|end| *end < i64::MAX);
    let reset = match resets_at.and_then(|end| jiff::Timestamp::from_millisecond(end).ok()) {
        Some(end) => format!("it resets at {end}"),
        None => "it does not reset".to_owned(),
    };
    format!("the call needs {least} USD at least, and {budget} leaves {left} USD; {reset}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::gateway::api_error::{AdmissionError, ApiError};
    use crate::ledger::KeyId;

    /// The window of a budget that contains 2026-11-25 13:14:15.678 UTC.
    fn window(owner: BudgetOwner, kind: WindowKind) -> WindowId {
        WindowId::at(owner, kind, 1_795_612_455_678)
    }

    #[rstest]
    #[case::hour(WindowKind::Hour, "for this hour", "it resets at 2026-11-25T14:00:00Z")]
    #[case::day(WindowKind::Day, "for this day", "it resets at 2026-11-26T00:00:00Z")]
    #[case::week(WindowKind::Week, "for this week", "it resets at 2026-11-30T00:00:00Z")]
    #[case::month(WindowKind::Month, "for this month", "it resets at 2026-12-01T00:00:00Z")]
    #[case::total(WindowKind::Total, "the total budget", "it does not reset")]
    fn a_budget_that_is_exceeded_is_named_with_its_reset_and_what_is_left(
        #[case] kind: WindowKind,
        #[case] named: &str,
        #[case] reset: &str,
    ) {
        let (least, left) = (Money::from_nano(300), Money::from_nano(20));
        let (least, left) = (least.expect("money"), left.expect("money"));
        for (owner, word, code) in [
            (BudgetOwner::Account, "account", "account_budget_exceeded"),
            (BudgetOwner::Key(KeyId(7)), "key", "key_budget_exceeded"),
        ] {
            let window = window(owner, kind);
            let error: ApiError = AdmissionError::BudgetExceeded { window, least, left }.into();
            let row = error.describe();
            assert_eq!((row.status, row.code), (402, code));
            let owner = format!("of the {word}");
            for part in [named, reset, owner.as_str(), "0.0000003 USD", "0.00000002 USD"] {
                assert!(row.message.contains(part), "{part}: {}", row.message);
            }
        }
    }
}
