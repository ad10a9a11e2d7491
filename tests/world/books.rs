//! What there is to tell of an account, from the store or from the command line.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OnceCell;
use tollgate::ledger::{AccountName, Ledger};
use tollgate::store::{self, StoreSection};

use super::{ACCOUNT, PATIENCE, World, process};

/// A line of `tollgate --json charges`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Charge {
    pub(crate) request_id: String,
    pub(crate) at: i64,
    pub(crate) endpoint: String,
    pub(crate) model: String,
    /// The name by which the client asked, if it was another.
    #[serde(default)]
    pub(crate) requested_model: Option<String>,
    pub(crate) vendor: String,
    pub(crate) route: String,
    pub(crate) depth: u32,
    pub(crate) usage: Value,
    pub(crate) basis: String,
    /// What the vendor reported and was not believed.
    #[serde(default)]
    pub(crate) rejected_usage: Option<Value>,
    /// The fees that are in the amount; null if there are none.
    #[serde(default)]
    pub(crate) fees: Value,
    pub(crate) amount_nano: i64,
    /// What the vendor charges, where that is known.
    pub(crate) cost_nano: Option<i64>,
    pub(crate) written_off_nano: i64,
    pub(crate) price_version: String,
    pub(crate) vendor_request_id: Option<String>,
}

impl Charge {
    /// Its tokens, in and out.
    pub(crate) fn tokens(&self) -> (u64, u64) {
        let number = |name: &str| self.usage[name].as_u64().expect("tokens are whole");
        (number("prompt_tokens"), number("completion_tokens"))
    }

    /// Its tokens that were read from a cache, and those that were written to one.
    pub(crate) fn cached(&self) -> (u64, u64) {
        let number = |name: &str| self.usage.get(name).map_or(0, |n| n.as_u64().expect("whole"));
        (number("cached_tokens"), number("cache_write_tokens"))
    }
}

/// What `tollgate --json account show` says.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Balances {
    #[serde(rename = "credited_nano")]
    pub(crate) credited: i64,
    #[serde(rename = "available_nano")]
    pub(crate) available: i64,
    #[serde(rename = "held_nano")]
    pub(crate) held: i64,
    #[serde(rename = "posted_nano")]
    pub(crate) posted: i64,
    #[serde(rename = "written_off_nano")]
    pub(crate) written_off: i64,
}

/// What a command of the command line said.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Told {
    /// Its output; panics when it failed.
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// Its output as JSON, one value a line; panics when it failed.
    pub(crate) fn json(self) -> Vec<Value> {
        let out = self.done();
        out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }
}

/// Reads the account in this process, as the command line does in one of its own for each reading.
/// That is what most tests wait with.
pub(crate) struct BooksReader {
    url: String,
    /// The ledger of a server. A file is opened for each reading, and is not kept open.
    server: OnceCell<Arc<dyn Ledger>>,
}

impl BooksReader {
    pub(super) fn of(url: String) -> BooksReader {
        BooksReader { url, server: OnceCell::new() }
    }

    async fn ledger(&self) -> Arc<dyn Ledger> {
        if self.url.starts_with("sqlite:") {
            return open_ledger(&self.url).await;
        }
        self.server.get_or_init(|| open_ledger(&self.url)).await.clone()
    }

    async fn charges(&self) -> Vec<Charge> {
        let (ledger, mut charges) = (self.ledger().await, Vec::new());
        let mut after = 0;
        loop {
            let page = ledger.read_journal(&account(), after, 1_000).await.expect("a journal");
            let Some(last) = page.last() else { return charges };
            after = last.seq;
            charges.extend(page.iter().map(|entry| {
                let mut line: Value = serde_json::from_str(&entry.line).expect("a line");
                line["amount_nano"] = entry.amount.nano().into();
                line["written_off_nano"] = entry.written_off.nano().into();
                serde_json::from_value::<Charge>(line).expect("a charge")
            }));
        }
    }

    async fn balances(&self) -> Balances {
        let found = self.ledger().await.balances(&account()).await.expect("balances");
        let found = found.expect("an account");
        Balances {
            credited: found.credit.nano(),
            available: found.available.nano(),
            held: found.held.nano(),
            posted: found.posted.nano(),
            written_off: found.written_off.nano(),
        }
    }
}

/// Opens the ledger of a store. A world need not outlive a power cut, so nobody waits for the disk.
pub(super) async fn open_ledger(url: &str) -> Arc<dyn Ledger> {
    let (url, outbox) = (url.to_owned(), String::new());
    let section = StoreSection { url, allow_volatile: true, outbox, ..StoreSection::default() };
    store::open(&section).await.expect("a store").ledger
}

fn account() -> AccountName {
    AccountName::parse(ACCOUNT).expect("a name")
}

impl World {
    /// A command of the binary, on the world's configuration.
    pub(crate) async fn command(&self, words: &[&str]) -> Told {
        self.command_with(words, &[]).await
    }

    /// The same with variables in its environment.
    pub(crate) async fn command_with(&self, words: &[&str], env: &[(&str, &str)]) -> Told {
        let mut command = process::command(self.folder.path());
        command.args(words).envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let run = command.kill_on_drop(true).output().await.expect("the binary");
        let text = |bytes| String::from_utf8(bytes).expect("the command line prints text");
        Told {
            code: run.status.code().expect("an exit code"),
            out: text(run.stdout),
            err: text(run.stderr),
        }
    }

    /// A command that a signal may end. Returns its number; `None` if the command was done.
    pub(crate) async fn killed_command(&self, words: &[&str], env: &[(&str, &str)]) -> Option<i32> {
        let mut command = process::command(self.folder.path());
        command.args(words).envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let run = command.kill_on_drop(true).output().await.expect("the binary");
        let signal = run.status.signal();
        let told = String::from_utf8_lossy(&run.stderr);
        assert!(signal.is_some() || run.status.success(), "{words:?}: {told}");
        signal
    }

    /// All charges of the account, oldest first.
    pub(crate) async fn charges(&self) -> Vec<Charge> {
        match &self.books {
            Some(books) => books.charges().await,
            None => self.told_charges().await,
        }
    }

    /// The same, as the command line tells them.
    pub(crate) async fn told_charges(&self) -> Vec<Charge> {
        let told = self.command(&["--json", "charges", ACCOUNT]).await.done();
        told.lines().map(|line| serde_json::from_str(line).expect("a charge")).collect()
    }

    /// The balances of the account.
    pub(crate) async fn balances(&self) -> Balances {
        match &self.books {
            Some(books) => books.balances().await,
            None => self.told_balances().await,
        }
    }

    /// The same, as the command line tells them.
    pub(crate) async fn told_balances(&self) -> Balances {
        let told = self.command(&["--json", "account", "show", ACCOUNT]).await.done();
        serde_json::from_str(&told).expect("balances")
    }

    /// Waits until so many charges are made and nothing is held, and proves the books.
    pub(crate) async fn settled(&self, count: usize) -> Vec<Charge> {
        self.books(|balances, charges| charges.len() == count && balances.held == 0).await
    }

    /// Waits until so many charges are made, whatever is still held, and proves the books.
    pub(crate) async fn charged(&self, count: usize) -> Vec<Charge> {
        self.books(|_, charges| charges.len() == count).await
    }

    /// Waits until nothing is held, whatever was charged, and proves the books.
    pub(crate) async fn nothing_held(&self) -> Vec<Charge> {
        self.books(|balances, _| balances.held == 0).await
    }

    /// Waits until nothing is held and all of these calls are charged, and proves the books.
    pub(crate) async fn at_rest_with(&self, calls: &BTreeSet<String>) -> Vec<Charge> {
        self.books(|balances, charges| {
            let charged: BTreeSet<&str> = charges.iter().map(|c| c.request_id.as_str()).collect();
            balances.held == 0 && calls.iter().all(|call| charged.contains(call.as_str()))
        })
        .await
    }

    /// Waits until all lines are in the sums of usage, and proves the books of all accounts.
    pub(crate) async fn sums_are_proved(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let proved = self.command(&["--json", "check", "--books"]).await.json().remove(0);
            assert!(proved["lines"].as_u64().is_some_and(|lines| lines > 0), "{proved}");
            if proved["lines_not_folded"] == 0 {
                return;
            }
            assert!(Instant::now() < end, "not all lines are in the sums: {proved}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the books are as expected. They are read in two steps. Where these do not add
    /// up, something may have happened in between: the books are read again until nothing has.
    async fn books(&self, expected: impl Fn(&Balances, &[Charge]) -> bool) -> Vec<Charge> {
        let end = Instant::now() + PATIENCE;
        // Each step is a process, so who waits for long asks less and less often.
        let mut pause = Duration::from_millis(20);
        loop {
            let (before, charges) = (self.balances().await, self.charges().await);
            if expected(&before, &charges)
                && (before.are_of(&charges) || self.balances().await == before)
            {
                before.prove(&charges);
                return charges;
            }
            assert!(Instant::now() < end, "the books are {before:?} {charges:#?}");
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(250));
        }
    }

    /// Waits until nothing is held, and proves that nothing was charged.
    pub(crate) async fn free_of_charge(&self) {
        assert_eq!(self.settled(0).await, []);
    }

    /// Waits until one charge is made, and gives it.
    pub(crate) async fn charge(&self) -> Charge {
        self.settled(1).await.remove(0)
    }
}

impl Balances {
    /// Panics unless the sums are right.
    pub(crate) fn prove(&self, charges: &[Charge]) {
        let Balances { credited, available, held, posted, written_off } = *self;
        assert_eq!(credited + written_off, available + held + posted, "{self:?}");
        assert_eq!(sums_of(charges), (posted, written_off));
    }

    /// Whether they are the sums of these charges.
    fn are_of(&self, charges: &[Charge]) -> bool {
        sums_of(charges) == (self.posted, self.written_off)
    }
}

/// What charges come to, and what of it was written off.
fn sums_of(charges: &[Charge]) -> (i64, i64) {
    let sum = |of: fn(&Charge) -> i64| charges.iter().map(of).sum::<i64>();
    (sum(|charge| charge.amount_nano), sum(|charge| charge.written_off_nano))
}
