//! Names in memory, as simple as they can be. Here a lease or a life is over at once or never.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tollgate::idempotency::ClaimMode;

use super::{Done, Step, Subject};

#[derive(Default)]
pub(super) struct Yardstick {
    names: BTreeMap<(String, String), Record>,
    bodies: BTreeMap<(String, String), String>,
}

struct Record {
    owner: String,
    content: [u8; 32],
    is_alive: bool,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Running,
    Replied(usize),
    NotKept,
}

#[async_trait]
impl Subject for Yardstick {
    async fn perform(&mut self, Step { account, naming, done }: &Step) -> String {
        let at = (account.to_string(), naming.name.clone());
        let owner = &naming.owner;
        let known = self.names.get_mut(&at);
        let is_mine = known.as_ref().is_some_and(|known| known.owner == *owner);
        let runs = known.as_ref().is_some_and(|known| known.state == State::Running);
        let word = match done {
            Done::Take { taking, lease_ms } => {
                if let Some(known) = known.filter(|_| *taking != ClaimMode::Replace) {
                    if known.content != naming.content {
                        return "other".to_owned();
                    }
                    match known.state {
                        State::Replied(bytes) => return format!("replied {} {bytes}", known.owner),
                        State::NotKept => return "not_kept".to_owned(),
                        State::Running
                            if is_mine || *taking == ClaimMode::TakeOver(known.owner.clone()) => {}
                        State::Running if known.is_alive => return "running".to_owned(),
                        State::Running => return format!("lapsed {}", known.owner),
                    }
                }
                let (owner, content, is_alive) = (owner.clone(), naming.content, *lease_ms > 0);
                let record = Record { owner, content, is_alive, state: State::Running };
                // What runs is remembered for some leases at least.
                if naming.life_ms > 0 || is_alive {
                    self.names.insert(at, record);
                } else {
                    self.names.remove(&at);
                }
                "mine"
            }
            Done::Renew { lease_ms } => match known.filter(|_| is_mine && runs) {
                Some(known) => {
                    known.is_alive = *lease_ms > 0;
                    "yes"
                }
                None => "no",
            },
            Done::End(_) if known.is_some() && !is_mine => "no",
            Done::End(_) if known.is_some() && !runs => "yes",
            Done::End(_) if naming.life_ms == 0 => {
                self.names.remove(&at);
                "yes"
            }
            Done::End(reply) => {
                let body = reply
                    .as_ref()
                    .map(|reply| String::from_utf8(reply.body.to_vec()).expect("a text"));
                let state = body.as_ref().map_or(State::NotKept, |b| State::Replied(b.len()));
                if let Some(body) = body.filter(|body| !body.is_empty()) {
                    self.bodies.insert((at.0.clone(), owner.clone()), body);
                }
                let (owner, content) = (owner.clone(), naming.content);
                self.names.insert(at, Record { owner, content, is_alive: false, state });
                "yes"
            }
            Done::Free => {
                if is_mine && runs {
                    self.names.remove(&at);
                }
                "done"
            }
            Done::Body => {
                let body = self.bodies.get(&(at.0, owner.clone()));
                return body.cloned().unwrap_or_else(|| "none".to_owned());
            }
        };
        word.to_owned()
    }
}
