//! Operators in Redis, the record of their changes, and the requests that they have named. All
//! their keys have one hash tag, which is no name of an account, so they are in one slot of a
//! cluster.

use std::collections::HashMap;

use async_trait::async_trait;

use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::hex::to_hex;
use crate::ledger::Unavailable;
use crate::operators::bounds::{
    self, AUDIT_LINES_MAX, AUDIT_PAGE_MAX, AUDIT_RECENT_LINES, AUDIT_TRIM_MAX,
    OPERATOR_REQUESTS_MAX, OPERATORS_MAX, REQUEST_TTL_MS,
};
use crate::operators::{
    NamedRequest, OperatorChange, OperatorRecord, OperatorStore, Role, TokenHash,
};

/// The key of the hash of the records of operators, by name.
const OPERATORS_KEY: &str = "tollgate:{:operators}:operators";
/// The key of the hash of the names of operators, by the digests of their tokens. A name counts
/// only if the record of that operator has the digest.
const TOKENS_KEY: &str = "tollgate:{:operators}:tokens";
/// The key of the list of the lines of the record of changes.
const AUDIT_KEY: &str = "tollgate:{:operators}:audit";
/// The key of the number of lines that were removed from the beginning of that list.
const AUDIT_REMOVED_KEY: &str = "tollgate:{:operators}:audit-removed";
/// A new request makes room by removing at most this many old ones.
const EVICTIONS_MAX: u32 = 64;

/// What stands in a record for a token that does not expire.
const NO_EXPIRY: &str = "-";

/// Returns the key of the names of an operator's requests, by the time of their expiry.
fn request_names_key(owner: &str) -> String {
    format!("tollgate:{{:operators}}:requests:{owner}")
}

/// Returns the beginning of the keys of an operator's requests. Their names may contain anything:
/// the hash tag comes before them, and the name of an operator has no colon.
fn requests_prefix(owner: &str) -> String {
    format!("tollgate:{{:operators}}:request:{owner}:")
}

fn request_key(owner: &str, name: &str) -> String {
    [&requests_prefix(owner), name].concat()
}

fn expiry_text(expires_at: Option<i64>) -> String {
    expires_at.map_or_else(|| NO_EXPIRY.to_owned(), |at| at.to_string())
}

/// Returns the record of an operator as it is stored.
fn record_text(hash: TokenHash, record: &OperatorRecord) -> String {
    let OperatorRecord { name: _, role, prefix, created_at, expires_at } = record;
    let (token, role, expires) = (hash.hex(), role.name(), expiry_text(*expires_at));
    format!("{token} {role} {prefix} {created_at} {expires}")
}

/// Parses the record of an operator; `None` if it cannot be read. Returns the digest of the token
/// as well.
fn parse_record<'a>(name: &str, text: &'a str) -> Option<(&'a str, OperatorRecord)> {
    let mut parts = text.split(' ');
    let (token, role) = (parts.next()?, Role::of_name(parts.next()?)?);
    let (prefix, created_at) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
    let expires_at = match parts.next()? {
        NO_EXPIRY => None,
        digits => Some(digits.parse().ok()?),
    };
    let name = name.to_owned();
    Some((token, OperatorRecord { name, role, prefix, created_at, expires_at }))
}

fn unexpected_answer(reply: &[String]) -> Unavailable {
    Unavailable(format!("unexpected answer: {:?}", reply.first()))
}

fn parse_change(reply: &[String]) -> Result<OperatorChange, Unavailable> {
    match reply.first().map(String::as_str) {
        Some("done") => Ok(OperatorChange::Done),
        Some("exists") => Ok(OperatorChange::AlreadyExists),
        Some("unknown") => Ok(OperatorChange::Unknown),
        Some("last_owner") => Ok(OperatorChange::LastOwner),
        Some("token_taken") => Err(bounds::token_taken()),
        Some("too_many") => Err(bounds::too_many_operators()),
        _ => Err(unexpected_answer(reply)),
    }
}

impl RedisStore {
    async fn operator_field(&self, key: &str, field: &str) -> Result<Option<String>, Unavailable> {
        let get = redis::cmd("HGET").arg(key).arg(field).to_owned();
        self.connection().await?.query(&get).await
    }

    /// Returns the operator that has a token, if the record of the operator says so as well.
    async fn find_by_token(&self, token: &str) -> Result<Option<OperatorRecord>, Unavailable> {
        let Some(name) = self.operator_field(TOKENS_KEY, token).await? else { return Ok(None) };
        let record = self.operator_field(OPERATORS_KEY, &name).await?;
        let record = record.as_deref().and_then(|text| parse_record(&name, text));
        Ok(record.filter(|(known, _)| *known == token).map(|(_, record)| record))
    }
}

#[async_trait]
impl OperatorStore for RedisStore {
    async fn add_operator(
        &self,
        hash: TokenHash,
        record: OperatorRecord,
    ) -> Result<OperatorChange, Unavailable> {
        bounds::check_operator(&record)?;
        let mut call = ScriptCall::default();
        call.key(OPERATORS_KEY).key(TOKENS_KEY);
        call.arg(&record.name).arg(hash.hex()).arg(record_text(hash, &record)).arg(OPERATORS_MAX);
        parse_change(&self.run_script(&call, |s| &s.operators.add).await?)
    }

    async fn find_operator(&self, hash: TokenHash) -> Result<Option<OperatorRecord>, Unavailable> {
        let found = self.find_by_token(&hash.hex()).await?;
        if found.is_none() {
            self.confirm_absence(TOKENS_KEY).await?;
        }
        Ok(found)
    }

    async fn list_operators(&self) -> Result<Vec<OperatorRecord>, Unavailable> {
        let get = redis::cmd("HGETALL").arg(OPERATORS_KEY).to_owned();
        let records: HashMap<String, String> = self.connection().await?.query(&get).await?;
        if records.is_empty() {
            self.confirm_absence(OPERATORS_KEY).await?;
        }
        let parse = |(name, text): (&String, &String)| {
            let record = parse_record(name, text).map(|(_, record)| record);
            record.ok_or_else(|| Unavailable(format!("the operator {name} cannot be read")))
        };
        let mut records = records.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    async fn replace_token(
        &self,
        name: &str,
        hash: TokenHash,
        prefix: &str,
        expires_at: Option<i64>,
    ) -> Result<OperatorChange, Unavailable> {
        bounds::check_token_prefix(prefix)?;
        let mut call = ScriptCall::default();
        call.key(OPERATORS_KEY).key(TOKENS_KEY);
        call.arg(name).arg(hash.hex()).arg(prefix).arg(expiry_text(expires_at));
        parse_change(&self.run_script(&call, |s| &s.operators.replace_token).await?)
    }

    async fn remove_operator(&self, name: &str) -> Result<OperatorChange, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(OPERATORS_KEY).key(TOKENS_KEY).arg(name);
        parse_change(&self.run_script(&call, |s| &s.operators.remove).await?)
    }

    async fn append_audit(&self, line: &str) -> Result<(), Unavailable> {
        bounds::check_audit_line(line)?;
        let mut call = ScriptCall::default();
        call.key(AUDIT_KEY).key(AUDIT_REMOVED_KEY);
        call.arg(line).arg(AUDIT_LINES_MAX).arg(AUDIT_TRIM_MAX).arg(AUDIT_RECENT_LINES);
        self.run_script(&call, |s| &s.operators.append_audit).await.map(drop)
    }

    async fn read_audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<(u64, String)>, Unavailable> {
        let before = before.map_or_else(String::new, |number| number.to_string());
        let mut call = ScriptCall::default();
        call.key(AUDIT_KEY).key(AUDIT_REMOVED_KEY);
        call.arg(before).arg(limit.min(AUDIT_PAGE_MAX));
        let mut reply = self.run_script(&call, |s| &s.operators.read_audit).await?;
        let first = reply.first().and_then(|number| number.parse::<u64>().ok());
        let first = first.ok_or_else(|| unexpected_answer(&reply))?;
        let mut lines: Vec<_> = (first..).zip(reply.drain(1..)).collect();
        lines.reverse();
        Ok(lines)
    }

    async fn claim_request(
        &self,
        owner: &str,
        name: &str,
        content: [u8; 32],
    ) -> Result<NamedRequest, Unavailable> {
        bounds::check_request(owner, name)?;
        let mut call = ScriptCall::default();
        call.key(request_key(owner, name)).key(request_names_key(owner));
        call.key(requests_prefix(owner));
        call.arg(to_hex(&content)).arg(name).arg(REQUEST_TTL_MS);
        call.arg(OPERATOR_REQUESTS_MAX).arg(EVICTIONS_MAX);
        let reply = self.run_script(&call, |s| &s.operators.claim_request).await?;
        let parts: Vec<&str> = reply.iter().map(String::as_str).collect();
        match parts[..] {
            ["new"] => Ok(NamedRequest::New),
            ["running"] => Ok(NamedRequest::Running),
            ["other_content"] => Ok(NamedRequest::OtherContent),
            ["answered", reply] => Ok(NamedRequest::Answered(reply.to_owned())),
            _ => Err(unexpected_answer(&reply)),
        }
    }

    async fn answer_request(
        &self,
        owner: &str,
        name: &str,
        reply: &str,
    ) -> Result<(), Unavailable> {
        bounds::check_request(owner, name)?;
        bounds::check_request_reply(reply)?;
        let mut call = ScriptCall::default();
        call.key(request_key(owner, name)).arg(reply);
        self.run_script(&call, |s| &s.operators.answer_request).await.map(drop)
    }

    async fn release_request(&self, owner: &str, name: &str) -> Result<(), Unavailable> {
        bounds::check_request(owner, name)?;
        let mut call = ScriptCall::default();
        call.key(request_key(owner, name)).key(request_names_key(owner)).arg(name);
        self.run_script(&call, |s| &s.operators.release_request).await.map(drop)
    }
}
