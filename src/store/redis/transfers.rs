//! Payments, grants, refunds and corrections in Redis, as people are shown them.

use std::collections::HashMap;

use serde::Deserialize;

use super::keys::AccountKeys;
use super::reply_parts::parse_money;
use super::shared_store::RedisStore;
use crate::ledger::{AccountName, TransferEntry, TransferType, Unavailable};
use crate::money::Money;

/// The record of a transfer. Amounts and times are texts of digits.
#[derive(Deserialize)]
struct StoredTransfer {
    kind: String,
    amount: String,
    at: String,
    #[serde(default)]
    moved: Option<String>,
    #[serde(default)]
    lot: Option<String>,
    #[serde(default)]
    request: Option<String>,
    #[serde(default)]
    reason: String,
}

impl RedisStore {
    /// Returns what came into an account and went back, oldest first, without the first
    /// `skipped`. Payments of older versions, whose times are not known, come before all
    /// others.
    pub(super) async fn read_transfers(
        &self,
        account: &AccountName,
        skipped: u64,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        let (keys, connection) = (AccountKeys::of(account), self.connection().await?);
        let read = |key| redis::cmd("HGETALL").arg(key).to_owned();
        let payments: HashMap<String, String> = connection.query(&read(keys.payments())).await?;
        let transfers: HashMap<String, String> = connection.query(&read(keys.transfers())).await?;
        let mut entries = Vec::with_capacity(payments.len());
        for (tx, amount) in payments {
            if !transfers.contains_key(&tx) {
                entries.push(undated_payment(tx, parse_money(&amount)?));
            }
        }
        for (tx, text) in transfers {
            entries.push(parse_transfer(tx, &text)?);
        }
        entries.sort_by(|a, b| (a.at, &a.tx).cmp(&(b.at, &b.tx)));
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(entries.into_iter().skip(skipped).take(limit).collect())
    }
}

pub(super) fn undated_payment(tx: String, amount: Money) -> TransferEntry {
    let (kind, moved, reason) = (TransferType::Payment, Some(amount), String::new());
    TransferEntry { tx, kind, amount, moved, at: None, lot: None, request: None, reason }
}

pub(super) fn parse_transfer(tx: String, text: &str) -> Result<TransferEntry, Unavailable> {
    let unreadable = || Unavailable(format!("the transfer '{tx}' cannot be read"));
    let stored: StoredTransfer = serde_json::from_str(text).map_err(|_| unreadable())?;
    let kind = TransferType::of_name(&stored.kind).ok_or_else(unreadable)?;
    let at = Some(stored.at.parse().map_err(|_| unreadable())?);
    let amount = parse_money(&stored.amount)?;
    let moved = match (kind, stored.moved) {
        (TransferType::Payment | TransferType::Grant, _) => Some(amount),
        (_, moved) => moved.as_deref().map(parse_money).transpose()?,
    };
    let lot = stored.lot.map(|name| name.parse().map_err(|_| unreadable())).transpose()?;
    let (request, reason) = (stored.request, stored.reason);
    Ok(TransferEntry { tx, kind, amount, moved, at, lot, request, reason })
}
