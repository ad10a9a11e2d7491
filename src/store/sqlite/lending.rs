//! What is lent of an account, as the writer keeps it in memory from one transaction to the next.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::allotment_rows;
use crate::ledger::open_hold::free_of;
use crate::ledger::prepaid::records::{Allotment, AllotmentId};
use crate::money::Money;

/// What is lent of an account.
#[derive(Default)]
pub(super) struct Lending {
    /// The allotments that hold something, or may.
    pub(super) allotments: BTreeMap<AllotmentId, Allotment>,
    /// Until then, in unix ms, nothing is lent.
    pub(super) recall_until: i64,
    /// Until then, in unix ms, a call that ends may have been voided before.
    pub(super) voided_until: i64,
}

impl Lending {
    /// Reads what is lent of an account.
    pub(super) fn read(c: &Connection, account: i64) -> rusqlite::Result<Lending> {
        let mut select =
            c.prepare_cached("SELECT recall_until, voided_until FROM lending WHERE account = ?")?;
        let times = select.query_row([account], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let (recall_until, voided_until) = times.unwrap_or_default();
        let allotments = allotment_rows::read_open(c, account)?;
        Ok(Lending { allotments, recall_until, voided_until })
    }

    /// Writes until when nothing is lent, and until when calls may have been voided.
    pub(super) fn write_times(&self, c: &Connection, account: i64) -> rusqlite::Result<()> {
        let mut insert = c.prepare_cached(
            "INSERT INTO lending (account, recall_until, voided_until) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE SET recall_until = excluded.recall_until,
             voided_until = excluded.voided_until",
        )?;
        insert.execute(params![account, self.recall_until, self.voided_until]).map(drop)
    }

    /// Returns how many allotments may have something free.
    pub(super) fn lent_out(&self) -> u32 {
        let count = self.allotments.values().filter(|a| a.may_be_free).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns what gateways have free at `now` (unix ms), and so is available as far as anybody is
    /// told. What they have free of a lot that has expired is not.
    pub(super) fn free(&self, now: i64) -> Money {
        let free = |a: &Allotment| free_of(&a.drawn, a.needed, now);
        let sum = |sum: Money, free: Money| sum.checked_add(free).unwrap_or(sum);
        self.allotments.values().map(free).fold(Money::ZERO, sum)
    }
}
