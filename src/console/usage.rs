//! The usage that pages show: sums of some days, within the bounds of a page of the API.

use std::collections::HashMap;

use serde::Deserialize;

use super::error::PageError;
use crate::clock::unix_ms;
use crate::ledger::{AccountName, KeyOrder, KeyRange};
use crate::management::usage::read_usage;
use crate::store::OpenStore;
use crate::usage::{RollupSums, UsageAsk, UsageGroup, UsageRange};

/// The usage of at most this many keys, the newest, has their names; that of others their ids.
const NAMED_KEYS_MAX: u32 = 1_000;

/// The days that are asked for; by default the last 30.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageDays {
    /// From this date on, such as 2026-11-01.
    pub(super) from: Option<String>,
    /// Until this date, which is left out.
    pub(super) to: Option<String>,
}

/// Sums of groups, in the order of the groups.
pub(super) type SummedGroups = Vec<(UsageGroup, RollupSums)>;

/// The usage of some days.
pub(super) struct UsageSums {
    /// By day and model.
    pub(super) by_model: SummedGroups,
    pub(super) by_day_and_key: SummedGroups,
    pub(super) by_key: SummedGroups,
    /// Whether there is more than that.
    pub(super) is_cut: bool,
    /// What people call the keys, by their ids.
    key_names: HashMap<String, String>,
}

impl UsageSums {
    /// Reads the usage of an account.
    pub(super) async fn read(
        store: &OpenStore,
        account: &AccountName,
        days: &UsageDays,
    ) -> Result<UsageSums, PageError> {
        let read = async |group_by| read_sums(store, account, days, group_by).await;
        let groups = [read("day,model").await?, read("day,key").await?, read("key").await?];
        let is_cut = groups.iter().any(Option::is_none);
        let [by_model, by_day_and_key, by_key] = groups.map(Option::unwrap_or_default);
        let range = KeyRange { order: KeyOrder::NewestFirst, after: None, limit: NAMED_KEYS_MAX };
        let keys = store.ledger.list_keys_in(account, range).await?.keys;
        // The newest key of an id comes last, and stays.
        let key_names = keys.into_iter().rev().map(|key| {
            let name = match key.scope.name {
                Some(name) => format!("{name} ({})", key.prefix),
                None => key.prefix,
            };
            (key.id.0.to_string(), name)
        });
        let key_names = key_names.collect();
        Ok(UsageSums { by_model, by_day_and_key, by_key, is_cut, key_names })
    }

    /// Returns what people call a key.
    pub(super) fn key_name(&self, id: &str) -> String {
        self.key_names.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }
}

/// Reads the sums of some days; `None` if they are more than a page.
pub(super) async fn read_sums(
    store: &OpenStore,
    account: &AccountName,
    days: &UsageDays,
    group_by: &str,
) -> Result<Option<SummedGroups>, PageError> {
    let (from, to) = (days.from.as_deref(), days.to.as_deref());
    let ask = UsageAsk { from, to, group_by: Some(group_by), after: None };
    let range = UsageRange::parse(ask, unix_ms());
    let range = range.map_err(|why| PageError::invalid(format!("{why}.")))?;
    let page = read_usage(store, account, &range).await?;
    Ok(page.next.is_none().then_some(page.rows))
}
