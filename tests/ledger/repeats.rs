//! Names of calls and their replies: the same on every store, whoever asks first, and within
//! bounds.
//!
//! What is done to them is written in words, such as `take b from:a = mine`: a verb, a call, how,
//! and what comes of it. A call `a` has the name `n`, the content 1 and the account `ada` unless it
//! says otherwise.

use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tollgate::idempotency::{
    ClaimMode, ClaimResult, IdempotencyKey, PIECE_BYTES, ReplyHead, ReplyParts, ReplyStore,
};
use tollgate::ledger::AccountName;
use tollgate::store::OpenStore;

use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, opened};

mod crowd;
mod random;
mod suite;
mod tables;
mod yardstick;

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

/// A store as two nodes of a fleet see it.
async fn two(url: &str) -> [OpenStore; 2] {
    [opened(url).await, opened(url).await]
}

fn naming(name: &str, owner: &str) -> IdempotencyKey {
    let (name, owner) = (name.to_owned(), owner.to_owned());
    IdempotencyKey { name, content: [1; 32], owner, life_ms: LONG_MS }
}

fn head() -> ReplyHead {
    let headers = [("content-type", "text/event-stream"), ("x-gateway-ä", "\"a\\b\" 日本")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    ReplyHead::new(200, headers.into())
}

fn reply(body: impl Into<Bytes>) -> ReplyParts {
    ReplyParts { head: head(), body: body.into() }
}

/// All pieces of a body, as they come.
async fn body(repeats: &dyn ReplyStore, account: &AccountName, owner: &str) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    for number in 0.. {
        match repeats.read_piece(account, owner, number).await.expect("an answer") {
            Some(piece) => pieces.push(piece),
            None => break,
        }
    }
    pieces
}

/// Something that is done, as its words say it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    account: AccountName,
    naming: IdempotencyKey,
    done: Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Done {
    Take { taking: ClaimMode, lease_ms: u64 },
    Renew { lease_ms: u64 },
    End(Option<ReplyParts>),
    Free,
    Body,
}

impl Step {
    fn parse(words: &str) -> Step {
        let mut words = words.split_whitespace();
        let mut next = || words.next().expect("a verb and a call");
        let (verb, owner) = (next(), next());
        let mut step = Step { account: name("ada"), naming: naming("n", owner), done: Done::Free };
        let (mut taking, mut lease_ms, mut text) = (ClaimMode::IfFree, LONG_MS, None);
        for word in words {
            let (how, what) = word.split_once(':').unwrap_or((word, ""));
            match how {
                "name" => what.clone_into(&mut step.naming.name),
                "content" => step.naming.content = [what.parse().expect("a number"); 32],
                "account" => step.account = name(what),
                "anew" => taking = ClaimMode::Replace,
                "from" => taking = ClaimMode::TakeOver(what.to_owned()),
                // It is over as soon as it begins.
                "lapsing" => lease_ms = 0,
                "gone" => step.naming.life_ms = 0,
                "with" => text = Some(what.to_owned()),
                other => panic!("{other}?"),
            }
        }
        step.done = match verb {
            "take" => Done::Take { taking, lease_ms },
            "renew" => Done::Renew { lease_ms },
            "end" => Done::End(text.map(reply)),
            "free" => Done::Free,
            "body" => Done::Body,
            other => panic!("{other}?"),
        };
        step
    }
}

/// Whatever steps can be taken on.
#[async_trait]
trait Subject: Send {
    /// What comes of a step, in words.
    async fn perform(&mut self, step: &Step) -> String;
}

#[async_trait]
impl Subject for OpenStore {
    async fn perform(&mut self, Step { account, naming, done }: &Step) -> String {
        let repeats = &*self.reply_store;
        let IdempotencyKey { name, owner, .. } = naming;
        let yes_or_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        match done {
            Done::Take { taking, lease_ms } => {
                let taken = repeats.claim_key(account, naming, taking, *lease_ms).await;
                match taken.expect("an answer") {
                    ClaimResult::Claimed => "mine".to_owned(),
                    ClaimResult::Running => "running".to_owned(),
                    ClaimResult::Expired { owner } => format!("lapsed {owner}"),
                    ClaimResult::Replied(kept) => {
                        assert_eq!(kept.head, head());
                        format!("replied {} {}", kept.owner, kept.bytes)
                    }
                    ClaimResult::ReplyNotStored { .. } => "not_kept".to_owned(),
                    ClaimResult::ContentMismatch => "other".to_owned(),
                }
            }
            Done::Renew { lease_ms } => {
                let renewed = repeats.renew_key(account, name, owner, *lease_ms).await;
                yes_or_no(renewed.expect("an answer"))
            }
            Done::End(reply) => {
                let ended = repeats.complete(account, naming, reply.clone()).await;
                yes_or_no(ended.expect("an answer"))
            }
            Done::Free => {
                repeats.release_key(account, name, owner).await.expect("an answer");
                "done".to_owned()
            }
            Done::Body => {
                let pieces = body(repeats, account, owner).await;
                let text = String::from_utf8(pieces.concat()).expect("a text");
                if pieces.is_empty() { "none".to_owned() } else { text }
            }
        }
    }
}
