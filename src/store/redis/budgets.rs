//! The limits of budgets and the scopes of API keys in Redis, and what is used of the windows of
//! budgets. The scripts on holds and allotments count in the windows.

use std::collections::{BTreeMap, HashMap};
use std::iter;

use super::super::data_version::RESTRICTIONS_VERSION;
use super::config_check::DATA_VERSION_KEY;
use super::connection::RedisConnection;
use super::key_records;
use super::keys::{AccountKeys, budget_field};
use super::reply_parts::parse_money;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::prepaid::window::WindowUse;
use crate::ledger::{
    AccountName, BudgetOwner, BudgetUse, KeyHash, KeyId, KeyRecord, KeyScope, Replaced,
    Replacement, Unavailable, WindowId, WindowKind,
};
use crate::money::Money;

/// The value of a limit that was removed.
const NO_LIMIT: &str = "none";

impl RedisStore {
    /// Sets or removes the limit of a budget; `false` if there is no such account.
    ///
    /// Before the first limit stands, the version of the data is raised and the keys that it is
    /// about are moved, so that no version that knows no budgets spends past it. A key that is
    /// added meanwhile is moved afterwards.
    pub(super) async fn write_budget(
        &self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> Result<bool, Unavailable> {
        let (keys, connection) = (AccountKeys::of(account), self.connection().await?);
        if !connection.query::<bool>(redis::cmd("EXISTS").arg(keys.account())).await? {
            self.confirm_absence(&keys.account()).await?;
            return Ok(false);
        }
        self.raise_version(RESTRICTIONS_VERSION).await?;
        key_records::restrict_keys(connection, account, owner).await?;
        let mut set = ScriptCall::default();
        set.key(keys.account()).key(keys.budgets()).arg(budget_field(owner, kind));
        match limit {
            Some(limit) => set.arg(limit.nano()),
            None => set.arg(NO_LIMIT),
        };
        let reply = self.run_script(&set, |s| &s.budgets.set).await?;
        match reply.first().map(String::as_str) {
            Some("done" | "exists") => {}
            Some("no_account") => return Ok(false),
            _ => return Err(Unavailable(format!("unexpected answer: {reply:?}"))),
        }
        key_records::restrict_keys(connection, account, owner).await?;
        Ok(true)
    }

    /// Raises the version of the data, so that no version of the program opens the store that would
    /// misread it.
    pub(super) async fn raise_version(&self, least: u32) -> Result<(), Unavailable> {
        let mut raise = ScriptCall::default();
        raise.key(DATA_VERSION_KEY).arg(least);
        self.run_script(&raise, |s| &s.budgets.raise_version).await.map(drop)
    }

    /// Adds an API key.
    ///
    /// The version of the data is raised before a key with a scope is there.
    pub(super) async fn write_key(
        &self,
        hash: KeyHash,
        record: &KeyRecord,
    ) -> Result<(), Unavailable> {
        if record.scope != KeyScope::default() {
            self.raise_version(RESTRICTIONS_VERSION).await?;
        }
        key_records::add(self.connection().await?, hash, record).await
    }

    /// Replaces the scope of the API key that is listed under a prefix.
    ///
    /// Before the scope stands, the version of the data is raised and the key is moved, so that no
    /// version that knows no scopes lets it do more.
    pub(super) async fn write_scope(
        &self,
        prefix: &str,
        scope: &Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        let connection = self.connection().await?;
        let Some(record) = key_records::find_by_prefix(connection, prefix).await? else {
            return Ok(Replaced::Unknown);
        };
        let replaced = match scope.compare(&record.scope) {
            Some(replaced) => replaced,
            None => self.replace_scope(connection, prefix, scope).await?,
        };
        // An earlier attempt may have ended before it raised the number.
        if replaced == Replaced::Done {
            key_records::raise_revision(connection).await?;
        }
        Ok(replaced)
    }

    async fn replace_scope(
        &self,
        connection: &RedisConnection,
        prefix: &str,
        scope: &Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        self.raise_version(RESTRICTIONS_VERSION).await?;
        let Some(record) = key_records::restrict_by_prefix(connection, prefix).await? else {
            return Ok(Replaced::Unknown);
        };
        // The script compares the text: another version may write the same scope in another way.
        let Some(stored) = record.scope() else { return Ok(Replaced::Unknown) };
        if let Some(replaced) = scope.compare(&stored) {
            return Ok(replaced);
        }
        let after = &scope.after;
        let mut set = ScriptCall::default();
        set.key(&record.key).arg(record.scope_text.as_deref().unwrap_or_default());
        set.arg(if *after == KeyScope::default() { String::new() } else { after.to_json() });
        let reply = self.run_script(&set, |s| &s.access.set_scope).await?;
        let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
        match reply[..] {
            ["done"] => Ok(Replaced::Done),
            ["changed"] => Ok(Replaced::Changed),
            ["unknown"] => Ok(Replaced::Unknown),
            _ => Err(Unavailable(format!("unexpected answer: {reply:?}"))),
        }
    }

    /// Returns the budgets of an account and of some of its keys, or of all of them (`None`), in
    /// order, with what is used of the windows that run now.
    pub(super) async fn read_budgets(
        &self,
        account: &AccountName,
        of: Option<&[KeyId]>,
    ) -> Result<Vec<BudgetUse>, Unavailable> {
        let (keys, connection) = (AccountKeys::of(account), self.connection().await?);
        let limits = match of {
            Some(of) => read_limits(connection, &keys, of).await?,
            None => connection.query(redis::cmd("HGETALL").arg(keys.budgets())).await?,
        };
        let budgets = limits.iter().map(|(budget, limit)| parse_budget(budget, limit));
        let budgets: BTreeMap<_, _> = budgets.collect::<Result<_, Unavailable>>()?;
        let (seconds, micros): (i64, i64) = connection.query(&redis::cmd("TIME")).await?;
        let now = seconds * 1_000 + micros / 1_000;
        let commands = budgets.keys().map(|(owner, kind)| {
            let mut read = redis::cmd("HMGET");
            read.arg(keys.window(WindowId::at(*owner, *kind, now)));
            read.arg(&["spent", "held", "lent"]);
            read
        });
        let fields: Vec<Vec<Option<String>>> = connection.query_each(commands.collect()).await?;
        let free = self.read_free_slices(&keys).await?;
        let uses = budgets.into_iter().zip(&fields).map(|(((owner, kind), limit), fields)| {
            let window = WindowId::at(owner, kind, now);
            let used = parse_use(fields)?;
            let free = free.get(&window.to_string()).copied().unwrap_or_default().min(used.lent);
            Ok(BudgetUse { owner, kind, limit, window, used, free })
        });
        uses.collect()
    }

    /// Returns for each window what gateways have free of it: what is in the slice of an allotment
    /// beyond all that its gateway needs.
    async fn read_free_slices(
        &self,
        keys: &AccountKeys,
    ) -> Result<HashMap<String, Money>, Unavailable> {
        let connection = self.connection().await?;
        let members = redis::cmd("SMEMBERS").arg(keys.allotments()).to_owned();
        let ids: Vec<String> = connection.query(&members).await?;
        let slices = ids.iter().map(|id| redis::cmd("HGETALL").arg(keys.slices(id)).to_owned());
        let slices: Vec<HashMap<String, String>> = connection.query_each(slices.collect()).await?;
        let needed =
            ids.iter().map(|id| redis::cmd("HGET").arg(keys.hold(id)).arg("needed").to_owned());
        let needed: Vec<Option<String>> = connection.query_each(needed.collect()).await?;
        let mut free: HashMap<String, Money> = HashMap::new();
        for (slices, needed) in slices.iter().zip(&needed) {
            let needed = needed.as_deref().map_or(Ok(Money::ZERO), parse_money)?;
            for (window, slice) in slices {
                let unneeded = parse_money(slice)?.saturating_sub(needed);
                let sum = free.entry(window.clone()).or_default();
                *sum = sum.checked_add(unneeded).unwrap_or(*sum);
            }
        }
        Ok(free)
    }
}

/// Reads the limits of an account and of some of its keys, by their fields.
async fn read_limits(
    connection: &RedisConnection,
    keys: &AccountKeys,
    of: &[KeyId],
) -> Result<HashMap<String, String>, Unavailable> {
    let owners = of.iter().map(|key| BudgetOwner::Key(*key));
    let fields: Vec<String> = iter::once(BudgetOwner::Account)
        .chain(owners)
        .flat_map(|owner| WindowKind::ALL.map(|kind| budget_field(owner, kind)))
        .collect();
    let read = redis::cmd("HMGET").arg(keys.budgets()).arg(&fields).to_owned();
    let limits: Vec<Option<String>> = connection.query(&read).await?;
    let known = fields.into_iter().zip(limits);
    Ok(known.filter_map(|(field, limit)| Some((field, limit?))).collect())
}

/// Parses a budget, `OWNER/KIND`, and its limit.
fn parse_budget(
    budget: &str,
    limit: &str,
) -> Result<((BudgetOwner, WindowKind), Option<Money>), Unavailable> {
    let parts = budget.split_once('/');
    let parts = parts.and_then(|(owner, kind)| Some((owner.parse::<BudgetOwner>().ok()?, kind)));
    let parts = parts.and_then(|(owner, kind)| Some((owner, WindowKind::of_name(kind)?)));
    let parts = parts.ok_or_else(|| Unavailable(format!("unknown budget: {budget}")))?;
    let limit = if limit == NO_LIMIT { None } else { Some(parse_money(limit)?) };
    Ok((parts, limit))
}

/// Parses what is spent, held and lent of a window; nothing if the window is not there.
fn parse_use(fields: &[Option<String>]) -> Result<WindowUse, Unavailable> {
    let amount = |at: usize| match fields.get(at).and_then(Option::as_deref) {
        Some(digits) => parse_money(digits),
        None => Ok(Money::ZERO),
    };
    Ok(WindowUse { spent: amount(0)?, held: amount(1)?, lent: amount(2)? })
}
