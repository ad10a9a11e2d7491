//! Holds as the gateway has them, on a ledger that answers what it is told to.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use rstest::rstest;
use tollgate::ledger::account::Balances;
use tollgate::ledger::{
    self, AccountName, AccountSettings, BudgetOwner, BudgetUse, Hold, HoldCursor, HoldRefused,
    HoldRequest, JournalEntry, KeyHash, KeyId, KeyPage, KeyRange, KeyRecord, KeyScope, Ledger,
    OpenHold, OpenLot, Operation, Outcome, Receipt, Replaced, Replacement, SweepReport,
    TransferEntry, TransferPlace, Unavailable, WindowId, WindowKind,
};
use tollgate::money::Money;

use super::memory::name;

thread_local! {
    static DROPS: RefCell<Vec<(String, Money)>> = const { RefCell::new(Vec::new()) };
}

/// A ledger that answers one after the other, and knows what it was asked.
#[derive(Default)]
struct Parrot {
    answers: Mutex<VecDeque<Outcome>>,
    asked: Mutex<Vec<(AccountName, Operation)>>,
}

impl Parrot {
    fn that_says(answers: &[Outcome]) -> Parrot {
        Parrot { answers: Mutex::new(answers.to_vec().into()), ..Parrot::default() }
    }

    fn asked(&self) -> Vec<(AccountName, Operation)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn away<T>() -> Result<T, Unavailable> {
    Err(Unavailable("the parrot says nothing".to_owned()))
}

#[async_trait]
impl Ledger for Parrot {
    async fn open_account(&self, _: &AccountName) -> Result<bool, Unavailable> {
        away()
    }

    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((account.clone(), op));
        let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Receipt::start(async { answer.map_or_else(away, Ok) })
    }

    async fn balances(&self, _: &AccountName) -> Result<Option<Balances>, Unavailable> {
        away()
    }

    async fn account_deletion(&self, _: &AccountName) -> Result<Option<i64>, Unavailable> {
        away()
    }

    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        away()
    }

    async fn read_journal(
        &self,
        _: &AccountName,
        _: u64,
        _: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable> {
        away()
    }

    async fn list_lots(&self, _: &AccountName) -> Result<Vec<OpenLot>, Unavailable> {
        away()
    }

    async fn list_holds(
        &self,
        _: Option<&AccountName>,
        _: Option<&HoldCursor>,
        _: u32,
    ) -> Result<Vec<OpenHold>, Unavailable> {
        away()
    }

    async fn list_transfers(
        &self,
        _: &AccountName,
        _: u64,
        _: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        away()
    }

    async fn newest_transfers(
        &self,
        _: &AccountName,
        _: Option<&TransferPlace>,
        _: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        away()
    }

    async fn journal_length(&self, _: &AccountName) -> Result<u64, Unavailable> {
        away()
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        away()
    }

    async fn add_key(&self, _: KeyHash, _: KeyRecord) -> Result<(), Unavailable> {
        away()
    }

    async fn find_key(&self, _: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        away()
    }

    async fn find_key_by_prefix(&self, _: &str) -> Result<Option<KeyRecord>, Unavailable> {
        away()
    }

    async fn list_keys(&self, _: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        away()
    }

    async fn list_keys_in(&self, _: &AccountName, _: KeyRange) -> Result<KeyPage, Unavailable> {
        away()
    }

    async fn revoke_key(&self, _: &str, _: i64) -> Result<bool, Unavailable> {
        away()
    }

    async fn set_key_scope(
        &self,
        _: &str,
        _: Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        away()
    }

    async fn key_revision(&self) -> Result<u64, Unavailable> {
        Ok(0)
    }

    async fn set_budget(
        &self,
        _: &AccountName,
        _: BudgetOwner,
        _: WindowKind,
        _: Option<Money>,
    ) -> Result<bool, Unavailable> {
        away()
    }

    async fn list_budgets(&self, _: &AccountName) -> Result<Vec<BudgetUse>, Unavailable> {
        away()
    }

    async fn list_budgets_of(
        &self,
        _: &AccountName,
        _: &[KeyId],
    ) -> Result<Vec<BudgetUse>, Unavailable> {
        away()
    }

    async fn set_account_settings(
        &self,
        _: &AccountName,
        _: Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable> {
        away()
    }

    async fn account_settings(
        &self,
        _: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable> {
        away()
    }

    async fn list_suspended(&self) -> Result<Vec<AccountName>, Unavailable> {
        away()
    }

    async fn note_key_uses(&self, _: Vec<(KeyHash, i64)>) -> Result<(), Unavailable> {
        away()
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        away()
    }
}

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn origin() -> HoldRequest {
    HoldRequest { wanted: nano(60), least: nano(50), at: 3, key: Some(KeyId(8)) }
}

fn window() -> WindowId {
    WindowId::at(BudgetOwner::Key(KeyId(8)), WindowKind::Day, 3)
}

async fn hold(parrot: &Parrot) -> Result<Hold, HoldRefused> {
    ledger::place_hold(parrot, &name("ada"), "call", origin(), &[], 7).await
}

async fn held(parrot: &Parrot) -> Hold {
    hold(parrot).await.expect("a hold")
}

fn last(parrot: &Parrot) -> Operation {
    let (account, op) = parrot.asked().pop().expect("it was asked");
    assert_eq!(account, name("ada"));
    op
}

#[rstest]
#[case::made(Outcome::Held(nano(55)), 55)]
#[case::made_before(Outcome::HoldExists { held: nano(54), open: true }, 54)]
#[tokio::test]
async fn a_hold_is_what_was_asked_for_and_what_is_held(#[case] told: Outcome, #[case] amount: i64) {
    let parrot = Parrot::that_says(&[told]);
    let hold = held(&parrot).await;
    assert_eq!((hold.account(), hold.id()), (&name("ada"), "call"));
    assert_eq!((hold.held(), hold.origin()), (nano(amount), origin()));
    let id = "call".to_owned();
    let (wanted, least, key) = (nano(60), nano(50), Some(KeyId(8)));
    let asked = Operation::Hold { id, wanted, least, lease_ms: 7, key, rates: Vec::new() };
    assert_eq!(last(&parrot), asked);
    assert_eq!(hold.void(&parrot).await.expect_err("it says nothing").0.held(), nano(amount));
}

#[rstest]
#[case::too_little(
    Some(Outcome::Insufficient(nano(9))),
    HoldRefused::Insufficient { least: nano(50), available: nano(9) }
)]
#[case::of_a_budget_that_is_spent(
    Some(Outcome::BudgetExceeded { window: window(), left: nano(9) }),
    HoldRefused::BudgetExceeded { window: window(), least: nano(50), left: nano(9) }
)]
#[case::of_a_budget_that_is_held(
    Some(Outcome::BudgetInUse(nano(9))),
    HoldRefused::BudgetInUse { least: nano(50), left: nano(9) }
)]
#[case::nobody(Some(Outcome::NoAccount), HoldRefused::NoAccount)]
#[case::of_another_content(Some(Outcome::Conflict), HoldRefused::Conflict)]
#[case::ended(Some(Outcome::HoldExists { held: nano(60), open: false }), HoldRefused::Conflict)]
#[case::voided_before(Some(Outcome::Tombstoned), HoldRefused::Conflict)]
#[case::lent(Some(Outcome::Wait), HoldRefused::Lent)]
#[case::too_much(Some(Outcome::OutOfRange), HoldRefused::Conflict)]
#[case::away(None, away::<()>().expect_err("nothing").into())]
#[tokio::test]
async fn nothing_is_held_of_what_was_refused(
    #[case] told: Option<Outcome>,
    #[case] expected: HoldRefused,
) {
    let parrot = Parrot::that_says(told.as_slice());
    assert_eq!(hold(&parrot).await.expect_err("no hold"), expected);
}

#[tokio::test]
async fn an_extension_is_what_the_ledger_says_that_it_is() {
    let parrot =
        Parrot::that_says(&[Outcome::Held(nano(60)), Outcome::Held(nano(70)), Outcome::HoldEnded]);
    let mut hold = held(&parrot).await;
    assert_eq!(hold.extend(&parrot, nano(80)).await, Ok(nano(70)));
    assert_eq!((hold.held(), hold.origin()), (nano(70), origin()));
    assert_eq!(last(&parrot), Operation::Extend { id: "call".to_owned(), wanted: nano(80) });
    for _ in ["gone", "away"] {
        assert!(hold.extend(&parrot, nano(90)).await.is_err());
        assert_eq!(hold.held(), nano(70));
    }
    assert!(hold.void(&parrot).await.is_err());
}

#[tokio::test]
async fn a_settlement_tells_how_its_hold_began_and_is_tried_again() {
    let posted = Outcome::Posted { amount: nano(58), written_off: Money::ZERO };
    let parrot = Parrot::that_says(&[Outcome::Held(nano(55))]);
    let (hold, why) =
        held(&parrot).await.settle(&parrot, nano(58), "{}", None).await.expect_err("away");
    assert_eq!((hold.held(), why), (nano(55), away::<()>().expect_err("nothing")));
    let (id, line) = ("call".to_owned(), "{}".to_owned());
    let asked =
        Operation::Settle { id, charge: nano(58), line, origin: Some(origin()), tokens: None };
    assert_eq!(last(&parrot), asked);
    let well = Parrot::that_says(std::slice::from_ref(&posted));
    assert_eq!(hold.settle(&well, nano(58), "{}", None).await.expect("an answer"), posted);
    assert_eq!(last(&well), asked);
}

#[tokio::test]
async fn a_void_ends_the_hold_of_its_id_and_is_tried_again() {
    let parrot = Parrot::that_says(&[Outcome::Held(nano(55))]);
    let (hold, _) = held(&parrot).await.void(&parrot).await.expect_err("away");
    assert_eq!((hold.id(), hold.held()), ("call", nano(55)));
    let well = Parrot::that_says(&[Outcome::AlreadyPosted(nano(5))]);
    let answer = hold.void(&well).await.expect("an answer");
    assert_eq!(answer, Outcome::AlreadyPosted(nano(5)));
    assert_eq!(last(&well), Operation::Void { id: "call".to_owned() });
}

/// What was told of holds that were dropped in this thread.
fn told_of_drops() -> Vec<(String, Money)> {
    DROPS.with(RefCell::take)
}

fn report(hold: &Hold) {
    DROPS.with_borrow_mut(|drops| drops.push((hold.id().to_owned(), hold.held())));
}

#[tokio::test]
async fn a_hold_that_is_dropped_is_told_and_nothing_is_asked_of_the_ledger() {
    let parrot = Parrot::that_says(&[Outcome::Held(nano(55))]);
    let hold = held(&parrot).await.report_drop_to(report);
    assert_eq!(told_of_drops(), []);
    drop(hold);
    assert_eq!(told_of_drops(), [("call".to_owned(), nano(55))]);
    assert_eq!(parrot.asked().len(), 1, "it was asked for the hold only");
}

#[rstest]
#[case::settled(Some(nano(5)))]
#[case::voided(None)]
#[tokio::test]
async fn a_hold_whose_end_the_ledger_has_is_not_told_but_one_that_came_back_is(
    #[case] charge: Option<Money>,
) {
    let end = async |hold: Hold, parrot: &Parrot| match charge {
        Some(charge) => hold.settle(parrot, charge, "{}", None).await,
        None => hold.void(parrot).await,
    };
    let parrot = Parrot::that_says(&[Outcome::Held(nano(55)), Outcome::Done]);
    end(held(&parrot).await.report_drop_to(report), &parrot).await.expect("an answer");
    assert_eq!(told_of_drops(), []);

    let away = Parrot::that_says(&[Outcome::Held(nano(55))]);
    let back = end(held(&away).await.report_drop_to(report), &away).await.expect_err("away");
    assert_eq!(told_of_drops(), []);
    drop(back);
    assert_eq!(told_of_drops(), [("call".to_owned(), nano(55))]);
}
