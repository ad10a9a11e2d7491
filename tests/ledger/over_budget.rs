//! Charges above a budget: the line of each tells how far it is above, on both stores.

use tollgate::ledger::{BudgetOwner, Operation, Outcome, WindowKind};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::subject::{name, open};

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

/// What a vendor reports is charged, also above the hold. The hold itself never is above a limit,
/// so only the part above it can be.
#[tokio::test]
async fn a_charge_above_its_hold_and_a_budget_is_told_in_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    let sqlite = format!("sqlite:{}", folder.path().join("ledger.db").display());
    for url in [sqlite, server.fresh_url()] {
        let (ledger, account) = (open(&url).await, name("ada"));
        assert_eq!(ledger.open_account(&account).await, Ok(true));
        let submit = async |op| ledger.submit(&account, op).await.expect("an answer");
        let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(1_000) };
        assert_eq!(submit(credit).await, Outcome::Done);
        let (owner, kind) = (BudgetOwner::Account, WindowKind::Total);
        assert_eq!(ledger.set_budget(&account, owner, kind, Some(nano(100))).await, Ok(true));
        let hold = |id: &str, lease_ms| Operation::Hold {
            id: id.to_owned(),
            wanted: nano(30),
            least: nano(30),
            lease_ms,
            key: None,
            rates: Vec::new(),
        };
        let line = |id: &str| format!(r#"{{"request_id":"{id}"}}"#);
        let settle = |id: &str, charge| Operation::Settle {
            id: id.to_owned(),
            charge: nano(charge),
            line: line(id),
            origin: None,
            tokens: None,
        };
        let checkpoint = |id: &str, charge| Operation::Checkpoint {
            id: id.to_owned(),
            charge: nano(charge),
            line: line(id),
        };
        assert_eq!(submit(hold("within", 60_000)).await, Outcome::Held(nano(30)), "{url}");
        assert_eq!(submit(hold("above", 60_000)).await, Outcome::Held(nano(30)));
        assert_eq!(submit(hold("expired", 1)).await, Outcome::Held(nano(30)));
        assert_eq!(submit(checkpoint("expired", 35)).await, Outcome::Done);
        submit(settle("within", 40)).await;
        submit(settle("above", 50)).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!(ledger.expire_holds().await.map(|swept| swept.expired), Ok(1));
        submit(settle("expired", 37)).await;
        let journal = ledger.read_journal(&account, 0, 9).await.expect("lines");
        let lines: Vec<&str> = journal.iter().map(|entry| entry.line.as_str()).collect();
        let counted = |id: &str| line(id).replace('}', r#","windows":"account/total/0"}"#);
        let over = |id: &str, nano: i64| {
            counted(id).replace('}', &format!(r#","over_budget_nano":{nano}}}"#))
        };
        // 40 and 60 held; 90 and 30 held; 125; 127.
        let expected =
            [counted("within"), over("above", 20), over("expired", 5), over("expired", 2)];
        assert_eq!(lines, expected, "{url}");
    }
}
