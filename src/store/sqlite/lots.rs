//! Operations on lots of granted credit.

use rusqlite::params;

use super::holds;
use super::write_txn::WriteTxn;
use crate::clock::unix_ms;
use crate::ledger::prepaid::records::PrepaidAccount;
use crate::ledger::prepaid::transfer;
use crate::ledger::{AccountName, OpenLot};
use crate::money::Money;

/// One sweep lets the credit of at most this many accounts expire; the next sweep does the rest.
const SWEEP_MAX: u32 = 1_000;

/// Returns the open lots of an account beside that of payments. Of a lot whose time has come
/// nothing is available.
pub(super) fn list(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<Vec<OpenLot>> {
    let Some(head) = txn.head(name)? else { return Ok(Vec::new()) };
    let now = unix_ms();
    let shown = head.granted_lots().map(|(id, mut lot)| {
        if id.is_expired(now) {
            lot.available = Money::ZERO;
        }
        OpenLot { id, lot }
    });
    Ok(shown.filter(|open| !open.lot.is_empty()).collect())
}

/// Lets credit expire whose time has come, of accounts on which nothing happens.
pub(super) fn expire_due(txn: &mut WriteTxn<'_>) -> rusqlite::Result<()> {
    if !txn.has_lots()? {
        return Ok(());
    }
    let (conn, now) = (txn.conn, unix_ms());
    let mut select = conn.prepare_cached(
        "SELECT name FROM account WHERE id IN (
             SELECT account FROM credit_lot INDEXED BY credit_lot_due
             WHERE available > 0 AND expires_at < 9223372036854775807 AND expires_at <= ?
             ORDER BY expires_at LIMIT ?)",
    )?;
    let names = select.query_map(params![now, SWEEP_MAX], |row| row.get::<_, String>(0))?;
    for name in names.collect::<rusqlite::Result<Vec<_>>>()? {
        let Some(name) = AccountName::parse(&name) else { continue };
        expire_credit_at(txn, &name, now)?;
    }
    Ok(())
}

/// Lets credit of an account expire whose time has come.
pub(super) fn expire_credit(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<()> {
    expire_credit_at(txn, name, unix_ms())
}

fn expire_credit_at(txn: &mut WriteTxn<'_>, name: &AccountName, now: i64) -> rusqlite::Result<()> {
    let Some(head) = txn.head(name)? else { return Ok(()) };
    // If a version of the program that does not know lots has spent the credit, nothing expires,
    // but the lot is closed.
    txn.set_head(name, &head);
    let records = PrepaidAccount { head, ..PrepaidAccount::default() };
    let changes = transfer::expire_credit(&records, now).changes;
    holds::save_sums(txn, name, &changes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::SqliteStore;
    use crate::clock::unix_ms;
    use crate::ledger::prepaid::answer::LedgerAnswer;
    use crate::ledger::prepaid::lot::{CreditSource, LotId};
    use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
    use crate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
    use crate::ledger::{AccountName, EntryKind, Ledger as _, Operation};
    use crate::money::Money;

    fn nano(amount: i64) -> Money {
        Money::from_nano(amount).expect("money")
    }

    fn ada() -> AccountName {
        AccountName::parse("ada").expect("a name")
    }

    fn opened(path: &Path) -> SqliteStore {
        SqliteStore::create(path).expect("a file");
        SqliteStore::open(path).expect("a store")
    }

    /// A store with 100 nano-USD in a lot and 50 of payments.
    async fn granted(path: &Path, lot: LotId) -> SqliteStore {
        let store = opened(path);
        store.open_account(&ada()).await.expect("open");
        let (g, p) = ("g".to_owned(), "p".to_owned());
        for op in [
            Operation::Grant { tx: g, amount: nano(100), lot },
            Operation::Credit { tx: p, amount: nano(50) },
        ] {
            store.submit(&ada(), op).await.expect("an outcome");
        }
        store
    }

    fn lend(step: u64, needed: i64, free: i64) -> AllotmentUpdate {
        let demand = AllotmentDemand {
            needed: nano(needed),
            kept: nano(needed),
            free: nano(free),
            quote: nano(1),
            ..AllotmentDemand::default()
        };
        let id = AllotmentId(format!("{}r", AllotmentId::PREFIX));
        let replay = AllotmentUpdate::replay(id, unix_ms(), 1, Vec::new());
        AllotmentUpdate { step, demand: Some(demand), lease_ms: 60_000, ..replay }
    }

    /// What the gateway has then, and for how long.
    async fn update(store: &SqliteStore, update: AllotmentUpdate) -> (i64, bool) {
        match store.update_allotment(&ada(), update).await {
            Ok(Some(LedgerAnswer::Status(status))) => {
                (status.held.nano(), status.held_for_ms.is_some())
            }
            other => panic!("{other:?}"),
        }
    }

    /// What is available and held of the account and of its only lot.
    async fn sums(store: &SqliteStore) -> [i64; 5] {
        let sums = store.balances(&ada()).await.expect("an answer").expect("balances");
        let lots = store.list_lots(&ada()).await.expect("lots");
        let lot = lots.first().map(|open| open.lot).unwrap_or_default();
        [sums.credit, sums.available, sums.held, lot.available, lot.held].map(Money::nano)
    }

    #[tokio::test]
    async fn an_allotment_keeps_what_it_drew_of_a_lot_until_it_gives_it_back_or_posts_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let lot = LotId {
            expires_at: unix_ms().saturating_add(3_600_000),
            source: CreditSource::Promotion,
        };
        let store = granted(&path, lot).await;
        let (held, expires) = update(&store, lend(1, 0, 20)).await;
        assert!(held > 0 && expires, "{held}");
        drop(store);
        let store = opened(&path);
        assert_eq!(sums(&store).await, [150, 150, 0, 100 - held, held]);
        let end = CallEnd {
            call: "call".to_owned(),
            key: None,
            held: nano(held),
            charge: Some(nano(held)),
            windows: Vec::new(),
            line: r#"{"a":1}"#.to_owned(),
        };
        let ending = AllotmentUpdate { ends: vec![end], ..lend(2, 0, 20) };
        let (next, _) = update(&store, ending).await;
        let journal = store.read_journal(&ada(), 0, 9).await.expect("a journal");
        assert_eq!(journal[0].line, format!(r#"{{"a":1,"lots":"{lot} {held}"}}"#));
        assert_eq!(sums(&store).await, [150, 150 - held, 0, 100 - held - next, next]);
        assert_eq!(update(&store, lend(3, 0, 0)).await, (0, false));
        assert_eq!(sums(&store).await, [150, 150 - held, 0, 100 - held, 0]);
    }

    #[tokio::test]
    async fn what_a_gateway_has_free_of_a_lot_past_its_time_is_not_shown_and_expires() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let lot =
            LotId { expires_at: unix_ms().saturating_add(900), source: CreditSource::Promotion };
        let store = granted(&path, lot).await;
        let (held, expires) = update(&store, lend(1, 0, 20)).await;
        assert!(held > 0 && expires, "{held}");
        tokio::time::sleep(Duration::from_millis(950)).await;
        assert_eq!(sums(&store).await, [50 + held, 50, held, 0, held]);
        store.expire_holds().await.expect("a sweep");
        assert_eq!(sums(&store).await, [50 + held, 50, held, 0, held]);
        update(&store, lend(2, 0, 0)).await;
        assert_eq!(sums(&store).await, [50, 50, 0, 0, 0]);
        let journal = store.read_journal(&ada(), 0, 9).await.expect("a journal");
        let lines = journal.iter().map(|entry| (entry.kind, entry.amount.nano()));
        let expected = [(EntryKind::Expiry, 100 - held), (EntryKind::Expiry, held)];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }
}
