//! Groups rows by what a page of usage asks for.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{BTreeMap, BTreeSet};

use super::rollup::{PeriodKind, RollupKey, RollupOwner, RollupSums, UsageOverflow};
use crate::ledger::KeyId;

/// By what rows may be grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UsageDimension {
    Day,
    Hour,
    Model,
    Key,
    Endpoint,
}

impl UsageDimension {
    pub(crate) const ALL: [UsageDimension; 5] = [
        UsageDimension::Day,
        UsageDimension::Hour,
        UsageDimension::Model,
        UsageDimension::Key,
        UsageDimension::Endpoint,
    ];

    /// Returns the name, as in `day`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            UsageDimension::Day => "day",
            UsageDimension::Hour => "hour",
            UsageDimension::Model => "model",
            UsageDimension::Key => "key",
            UsageDimension::Endpoint => "endpoint",
        }
    }

    /// Returns the dimension of a name; `None` if there is none.
    pub(crate) fn of_name(name: &str) -> Option<UsageDimension> {
        UsageDimension::ALL.into_iter().find(|dimension| dimension.name() == name)
    }
}

/// What the rows of a group have in common; `None` where they are not grouped by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageGroup {
    /// When the day or the hour began, in unix ms.
    pub(crate) start: Option<i64>,
    /// The id of the key; empty if the lines name none.
    pub(crate) key_id: Option<String>,
    /// The model; empty if the lines name none.
    pub(crate) model: Option<String>,
    /// The endpoint; empty if the lines name none.
    pub(crate) endpoint: Option<String>,
}

impl UsageGroup {
    fn of(key: &RollupKey, by: &BTreeSet<UsageDimension>) -> UsageGroup {
        let is_by = |dimension| by.contains(&dimension);
        let start = key.period.start;
        let start = if is_by(UsageDimension::Hour) {
            Some(start)
        } else {
            is_by(UsageDimension::Day).then(|| PeriodKind::Day.start_of(start))
        };
        let key_text = || match key.owner {
            RollupOwner::Key(KeyId(id)) => id.to_string(),
            RollupOwner::NoKey | RollupOwner::Account => String::new(),
        };
        UsageGroup {
            start,
            key_id: is_by(UsageDimension::Key).then(key_text),
            model: is_by(UsageDimension::Model).then(|| key.model.clone()),
            endpoint: is_by(UsageDimension::Endpoint).then(|| key.endpoint.clone()),
        }
    }
}

/// Groups rows. If they are grouped by hour, they must be rows of hours; if they are grouped by
/// key, rows of keys.
pub(crate) fn group_rollups(
    rows: &[(RollupKey, RollupSums)],
    by: &BTreeSet<UsageDimension>,
) -> Result<BTreeMap<UsageGroup, RollupSums>, UsageOverflow> {
    let mut groups = BTreeMap::new();
    for (key, sums) in rows {
        let sum: &mut RollupSums = groups.entry(UsageGroup::of(key, by)).or_default();
        *sum = sum.checked_add(sums)?;
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::super::rollup::RollupPeriod;
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    fn row(start: i64, key: u64, model: &str, calls: u64) -> (RollupKey, RollupSums) {
        let period = RollupPeriod { kind: PeriodKind::Hour, start };
        let owner = if key > 0 { RollupOwner::Key(KeyId(key)) } else { RollupOwner::NoKey };
        let (model, endpoint) = (model.to_owned(), "chat".to_owned());
        let sums = RollupSums { calls, ..RollupSums::default() };
        (RollupKey { period, owner, model, endpoint }, sums)
    }

    /// The calls of each group, which is told as one text.
    fn grouped(by: &str) -> Vec<(String, u64)> {
        let hour = DAY_MS / 24;
        let rows = [
            row(0, 1, "a", 1),
            row(0, 2, "b", 2),
            row(hour, 1, "a", 4),
            row(DAY_MS, 0, "a", 8),
            row(DAY_MS, 1, "b", 16),
        ];
        let by = by.split(',').filter_map(UsageDimension::of_name).collect();
        let groups = group_rollups(&rows, &by).expect("sums");
        let told = |group: UsageGroup| {
            let start = group.start.map(|start| start.to_string());
            let parts = [start, group.key_id, group.model, group.endpoint];
            parts.into_iter().flatten().collect::<Vec<_>>().join("/")
        };
        groups.into_iter().map(|(group, sums)| (told(group), sums.calls)).collect()
    }

    #[test]
    fn rows_are_grouped_by_what_is_asked_for_and_by_nothing_else() {
        let cases: [(&str, &[(&str, u64)]); 6] = [
            ("", &[("", 31)]),
            ("model", &[("a", 13), ("b", 18)]),
            ("day", &[("0", 7), ("86400000", 24)]),
            ("hour", &[("0", 3), ("3600000", 4), ("86400000", 24)]),
            ("key,endpoint", &[("/chat", 8), ("1/chat", 21), ("2/chat", 2)]),
            ("day,model", &[("0/a", 5), ("0/b", 2), ("86400000/a", 8), ("86400000/b", 16)]),
        ];
        for (by, expected) in cases {
            let expected = expected.iter().map(|(group, calls)| ((*group).to_owned(), *calls));
            assert_eq!(grouped(by), expected.collect::<Vec<_>>(), "{by}");
        }
    }
}
