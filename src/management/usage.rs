//! Usage, as operators ask for it. All of it is read from roll-ups, so it takes as long for ten
//! million charges as for ten.

use super::accounts::require_account;
use super::error::ManagementError;
use crate::ledger::AccountName;
use crate::store::OpenStore;
use crate::usage::{InvalidQuestion, NoUsagePage, UsagePage, UsageRange};

/// Reads a page of the usage of an account. Lines of the journal that are not in the sums yet, as a
/// rule those of the last second or two, are left out.
pub(crate) async fn read_usage(
    store: &OpenStore,
    account: &AccountName,
    range: &UsageRange,
) -> Result<UsagePage, ManagementError> {
    require_account(&*store.ledger, account).await?;
    let rows = store.usage.list_usage(range.query(account, None)).await?;
    range.page_of(rows).map_err(|why| match why {
        NoUsagePage::TooLarge(why) => why.into(),
        NoUsagePage::Overflow(why) => ManagementError::UnexpectedAnswer(why.to_string()),
    })
}

impl From<InvalidQuestion> for ManagementError {
    fn from(why: InvalidQuestion) -> ManagementError {
        ManagementError::Invalid { field: why.field, message: why.to_string() }
    }
}
