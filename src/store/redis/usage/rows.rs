//! The names of rows of sums and their sums, as texts, and the groups in which they are kept.

use std::collections::BTreeMap;

use super::super::keys::AccountKeys;
use super::super::reply_parts::{parse_part, unexpected};
use crate::ledger::{KeyId, Unavailable};
use crate::usage::{
    PeriodKind, ROLLUP_FIELDS, RollupKey, RollupOwner, RollupPeriod, RollupSums, RollupView,
    Rollups, UsageOverflow,
};

/// The rows of one kind in one period: they are one hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowGroup {
    pub(super) period: RollupPeriod,
    pub(super) view: RollupView,
}

impl RowGroup {
    /// Returns the group of a row.
    pub(super) fn of(key: &RollupKey) -> RowGroup {
        RowGroup { period: key.period, view: key.owner.view() }
    }

    /// Returns the kind of its rows, as in `day-keys`.
    pub(super) fn kind(self) -> String {
        kind_of(self.period.kind, self.view)
    }

    /// Returns the key of its hash.
    pub(super) fn key(self, keys: &AccountKeys) -> String {
        keys.usage_rows(&self.kind(), self.period.start)
    }
}

/// Returns the kind of rows, as in `day-keys`.
pub(super) fn kind_of(kind: PeriodKind, view: RollupView) -> String {
    let end = match view {
        RollupView::Account => "",
        RollupView::Keys => "-keys",
    };
    [kind.name(), end].concat()
}

/// Divides rows into their groups.
pub(super) fn group_rows(rows: Rollups) -> BTreeMap<RowGroup, Vec<(RollupKey, RollupSums)>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for (key, sums) in rows {
        groups.entry(RowGroup::of(&key)).or_default().push((key, sums));
    }
    groups
}

/// Returns the name of a row in its group: `[KEY,"ENDPOINT","MODEL"]`.
pub(super) fn format_name(key: &RollupKey) -> String {
    let key_id = match key.owner {
        RollupOwner::Account | RollupOwner::NoKey => None,
        RollupOwner::Key(id) => Some(id),
    };
    serde_json::json!([key_id, key.endpoint, key.model]).to_string()
}

/// Parses what [`format_name`] wrote.
pub(super) fn parse_name(group: RowGroup, name: &str) -> Result<RollupKey, Unavailable> {
    let (key_id, endpoint, model): (Option<KeyId>, String, String) =
        serde_json::from_str(name).map_err(|_| unexpected(name))?;
    let owner = match (group.view, key_id) {
        (RollupView::Account, _) => RollupOwner::Account,
        (RollupView::Keys, Some(id)) => RollupOwner::Key(id),
        (RollupView::Keys, None) => RollupOwner::NoKey,
    };
    Ok(RollupKey { period: group.period, owner, model, endpoint })
}

/// Writes sums as numbers with spaces between them, in the order of [`ROLLUP_FIELDS`].
pub(super) fn format_sums(sums: &RollupSums) -> Result<String, UsageOverflow> {
    Ok(sums.to_values()?.map(|value| value.to_string()).join(" "))
}

/// Parses what [`format_sums`] wrote.
pub(super) fn parse_sums(text: &str) -> Result<RollupSums, Unavailable> {
    let values = text.split(' ').map(parse_part).collect::<Result<Vec<i64>, _>>()?;
    let values = <[i64; ROLLUP_FIELDS.len()]>::try_from(values).map_err(|_| unexpected(text))?;
    RollupSums::of_values(values).map_err(|_| unexpected(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(
            key in proptest::option::of(any::<u64>()),
            names in proptest::array::uniform2("(?s).{0,9}"),
            is_account in any::<bool>(),
            values in prop::collection::vec(0..i64::MAX, ROLLUP_FIELDS.len()),
        ) {
            let [model, endpoint] = names;
            let owner = match key {
                _ if is_account => RollupOwner::Account,
                Some(id) => RollupOwner::Key(KeyId(id)),
                None => RollupOwner::NoKey,
            };
            let period = RollupPeriod { kind: PeriodKind::Day, start: 5 };
            let row = RollupKey { period, owner, model, endpoint };
            let name = format_name(&row);
            prop_assert_eq!(parse_name(RowGroup::of(&row), &name).expect("a row"), row);
            let sums = RollupSums::of_values(values.try_into().expect("values")).expect("sums");
            let text = format_sums(&sums).expect("a text");
            prop_assert_eq!(parse_sums(&text).expect("sums"), sums);
        }
    }

    #[test]
    fn what_is_no_row_is_refused() {
        let group = RowGroup {
            period: RollupPeriod { kind: PeriodKind::Day, start: 0 },
            view: RollupView::Keys,
        };
        for name in ["", "[]", "[1,\"a\"]", "[-1,\"a\",\"b\"]", "[\"1\",\"a\",\"b\"]"] {
            assert!(parse_name(group, name).is_err(), "{name}");
        }
        let zeros = ["0"; ROLLUP_FIELDS.len()].join(" ");
        assert_eq!(parse_sums(&zeros), Ok(RollupSums::default()));
        for text in ["", "0", &zeros[2..], &format!("{zeros} 0"), &zeros.replacen('0', "-1", 1)] {
            assert!(parse_sums(text).is_err(), "{text}");
        }
    }
}
