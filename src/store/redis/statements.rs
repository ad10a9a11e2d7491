//! Sealed statements in Redis. Those of an account are in the slot of the account, and the numbers
//! of all are in one hash, which may be on another server of a cluster. So a statement is stored
//! first and then gets its number. If a process ends between the two, the statement has no number
//! and is not told, until somebody asks for its month: then it gets one, and stays as it is.

use std::collections::HashMap;

use async_trait::async_trait;

use super::keys::AccountKeys;
use super::reply_parts::{parse_part, unexpected};
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::{AccountName, Unavailable};
use crate::statement::{SealedStatement, StatementMonth, StatementStore};

/// The key of the hash of the numbers of statements, by [`number_field`]. Its hash tag is no name
/// of an account.
const NUMBERS_KEY: &str = "tollgate:{:statements}:numbers";

/// Returns the name of a statement in the hash of numbers. The name of an account has no space.
fn number_field(account: &AccountName, month: &str) -> String {
    format!("{account} {month}")
}

/// Parses `SEALED_AT SHA256 BODY`.
fn parse_record(month: &str, number: u64, text: &str) -> Result<SealedStatement, Unavailable> {
    let mut parts = text.splitn(3, ' ');
    let (Some(sealed_at), Some(sha256), Some(body)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(unexpected(text));
    };
    Ok(SealedStatement {
        number,
        month: StatementMonth::parse(month).map_err(|_| unexpected(month))?,
        sealed_at: parse_part(sealed_at)?,
        sha256: sha256.to_owned(),
        body: body.to_owned(),
    })
}

#[async_trait]
impl StatementStore for RedisStore {
    async fn statement_clock(&self) -> Result<i64, Unavailable> {
        self.server_time().await
    }

    async fn list_statements(
        &self,
        account: &AccountName,
    ) -> Result<Vec<SealedStatement>, Unavailable> {
        let connection = self.connection().await?;
        let mut read = redis::cmd("HGETALL");
        read.arg(AccountKeys::of(account).statements());
        let records: HashMap<String, String> = connection.query(&read).await?;
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let mut numbers = redis::cmd("HMGET");
        numbers.arg(NUMBERS_KEY);
        for month in records.keys() {
            numbers.arg(number_field(account, month));
        }
        let numbers: Vec<Option<u64>> = connection.query(&numbers).await?;
        let numbered = records.iter().zip(numbers);
        let numbered = numbered.filter_map(|(record, number)| Some((record, number?)));
        let parse =
            |((month, text), number): ((&String, &String), u64)| parse_record(month, number, text);
        let mut found = numbered.map(parse).collect::<Result<Vec<_>, Unavailable>>()?;
        found.sort_by_key(|sealed| sealed.month);
        Ok(found)
    }

    async fn seal_statement(
        &self,
        account: &AccountName,
        month: StatementMonth,
        body: &str,
        sha256: &str,
    ) -> Result<SealedStatement, Unavailable> {
        let (keys, month) = (AccountKeys::of(account), month.to_string());
        let mut put = ScriptCall::default();
        put.key(keys.account()).key(keys.statements());
        put.arg(&month).arg(sha256).arg(body);
        let stored = self.run_script(&put, |scripts| &scripts.statements.put).await?;
        let [word, record] = &stored[..] else {
            return Err(Unavailable(format!("there is no account '{account}'")));
        };
        if word != "stored" {
            return Err(unexpected(word));
        }
        let exists = redis::cmd("EXISTS").arg(NUMBERS_KEY).to_owned();
        if !self.connection().await?.query::<bool>(&exists).await? {
            // The numbers of another store would begin at 1 again.
            self.confirm_absence(NUMBERS_KEY).await?;
        }
        let mut number = ScriptCall::default();
        number.key(NUMBERS_KEY).arg(number_field(account, &month));
        let given = self.run_script(&number, |scripts| &scripts.statements.number).await?;
        let number = given.first().ok_or_else(|| unexpected("no number"))?;
        parse_record(&month, parse_part(number)?, record)
    }
}
