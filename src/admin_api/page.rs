//! Pages of lists: each tells whether there is more, and by which cursor the next one is asked for.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::AdminError;

/// The rows of a page if the request does not say.
const LIMIT_DEFAULT: u32 = 100;
/// The most rows of a page.
const LIMIT_MAX: u32 = 1_000;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AdminPage<T: ToSchema> {
    /// The rows.
    pub(super) data: Vec<T>,
    /// Whether there are more rows.
    pub(super) has_more: bool,
    /// The `after` of the next page; null if there is none.
    pub(super) next: Option<String>,
}

impl<T: ToSchema> AdminPage<T> {
    /// Makes a page of rows, of which at most one more than the limit was asked for.
    pub(super) fn new(mut rows: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> AdminPage<T> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(cursor);
        AdminPage { data: rows, has_more, next }
    }

    /// Makes a page of rows of which it is known whether there are more.
    pub(super) fn until(data: Vec<T>, next: Option<String>) -> AdminPage<T> {
        AdminPage { data, has_more: next.is_some(), next }
    }
}

/// The parameters of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParameters {
    /// The `next` of the page before.
    after: Option<String>,
    /// The most rows of the page, from 1 to 1000; 100 if it is missing.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// The parameters of a list of an account.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AccountPageParameters {
    /// The name of the account.
    pub(super) account: String,
    /// The `next` of the page before.
    after: Option<String>,
    /// The most rows of the page, from 1 to 1000; 100 if it is missing.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// The parameters of a list of one account or of all.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AnyAccountPageParameters {
    /// The name of the account. If it is missing, the list is of all accounts.
    pub(super) account: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// The most rows of the page, from 1 to 1000; 100 if it is missing.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// Where a page begins, and how long it is.
#[derive(Debug)]
pub(super) struct PageRange {
    pub(super) after: Option<String>,
    pub(super) limit: u32,
}

impl PageParameters {
    pub(super) fn parse(self) -> Result<PageRange, AdminError> {
        PageRange::parse(self.after, self.limit.as_deref())
    }
}

impl AccountPageParameters {
    pub(super) fn parse(self) -> Result<PageRange, AdminError> {
        PageRange::parse(self.after, self.limit.as_deref())
    }
}

impl AnyAccountPageParameters {
    pub(super) fn parse(self) -> Result<PageRange, AdminError> {
        PageRange::parse(self.after, self.limit.as_deref())
    }
}

impl PageRange {
    pub(super) fn parse(
        after: Option<String>,
        limit: Option<&str>,
    ) -> Result<PageRange, AdminError> {
        let Some(text) = limit else { return Ok(PageRange { after, limit: LIMIT_DEFAULT }) };
        match text.parse() {
            Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(PageRange { after, limit }),
            _ => {
                let message = format!("'{text}' is no limit: give a number from 1 to {LIMIT_MAX}");
                Err(AdminError::invalid("limit", message))
            }
        }
    }

    /// Returns the cursor as a number; `None` at the beginning.
    pub(super) fn after_number(&self) -> Result<Option<u64>, AdminError> {
        let Some(text) = &self.after else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.unknown_cursor())
    }

    /// Returns the error that no page ended with the cursor.
    pub(super) fn unknown_cursor(&self) -> AdminError {
        let text = self.after.as_deref().unwrap_or_default();
        let message = format!("'{text}' is no cursor: give the `next` of the page before");
        AdminError::invalid("after", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_whether_there_is_more() {
        let cursor = |row: &u64| row.to_string();
        let page = AdminPage::new(vec![1_u64, 2, 3], 2, cursor);
        assert_eq!((page.data, page.has_more, page.next), (vec![1, 2], true, Some("2".into())));
        let page = AdminPage::new(vec![1_u64, 2], 2, cursor);
        assert_eq!((page.data, page.has_more, page.next), (vec![1, 2], false, None));
        for limit in ["0", "1001", "-1", "ten", ""] {
            assert!(PageRange::parse(None, Some(limit)).is_err(), "{limit}");
        }
        let range = PageRange::parse(Some("x".to_owned()), Some("7")).expect("a range");
        assert!(range.limit == 7 && range.after_number().is_err());
    }
}
