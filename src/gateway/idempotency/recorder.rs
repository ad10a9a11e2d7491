//! Records a reply while it goes to the client, up to a limit; and limits the memory of all
//! recordings together and of those of one account.

use bytes::{Bytes, BytesMut};

use crate::gateway::budgets::tenants::{
    BudgetPermit, Resource, ResourcePool, TenantBudget, TenantShare,
};
use crate::idempotency::{ReplyHead, ReplyParts};

/// All recordings of a process together hold at most this many bytes.
const TOTAL_BYTES_MAX: usize = 256 << 20;
/// The recordings of one account hold at most this many bytes.
const ACCOUNT_BYTES_MAX: usize = 64 << 20;
/// An account whose recordings hold fewer bytes than this is not refused because of other accounts.
const ACCOUNT_BYTES_MIN: usize = 1 << 20;
/// Chunks of at least this many bytes are kept without a copy; shorter ones are copied together.
const NO_COPY_BYTES_MIN: usize = 16 << 10;

/// Returns the memory budget of all recordings.
pub(in crate::gateway) fn recording_budget() -> TenantBudget {
    let share = TenantShare { max: ACCOUNT_BYTES_MAX, min: ACCOUNT_BYTES_MIN };
    TenantBudget::new(Resource::ReplyBytes, &ResourcePool::new(TOTAL_BYTES_MAX), share)
}

/// Records one reply. If the reply outgrows its limit or the budget, the recording is discarded.
#[derive(Debug)]
pub(super) struct ReplyRecorder {
    head: Option<ReplyHead>,
    /// Finished chunks; the bytes of `buffer` come after them.
    pieces: Vec<Bytes>,
    buffer: BytesMut,
    bytes_max: usize,
    is_discarded: bool,
    permit: BudgetPermit,
}

impl ReplyRecorder {
    pub(super) fn new(bytes_max: usize, permit: BudgetPermit) -> ReplyRecorder {
        ReplyRecorder {
            head: None,
            pieces: Vec::new(),
            buffer: BytesMut::new(),
            bytes_max,
            is_discarded: false,
            permit,
        }
    }

    /// Returns how many bytes are recorded.
    pub(super) fn bytes(&self) -> usize {
        self.permit.held()
    }

    /// Records the head of the reply.
    pub(super) fn set_head(&mut self, head: ReplyHead) {
        self.head = Some(head);
    }

    /// Adds a header to the recorded head, in the place of one of the same name.
    pub(super) fn add_header(&mut self, name: &str, value: String) {
        if let Some(head) = &mut self.head {
            head.headers.retain(|(known, _)| known != name);
            head.headers.push((name.to_owned(), value));
        }
    }

    /// Records the next chunk of the body, or discards the recording if there is no room for it.
    pub(super) fn push(&mut self, piece: &Bytes) {
        if self.is_discarded {
            return;
        }
        let fits = self.bytes().saturating_add(piece.len()) <= self.bytes_max;
        if !fits || self.permit.grow(piece.len()).is_err() {
            self.discard();
        } else if piece.len() < NO_COPY_BYTES_MIN {
            self.buffer.extend_from_slice(piece);
        } else {
            if !self.buffer.is_empty() {
                self.pieces.push(self.buffer.split().freeze());
            }
            self.pieces.push(piece.clone());
        }
    }

    /// Discards the recording, and the chunks that are still to come.
    pub(super) fn discard(&mut self) {
        self.is_discarded = true;
        self.pieces = Vec::new();
        self.buffer = BytesMut::new();
        self.permit.shrink(self.permit.held());
    }

    /// Returns the whole reply; `None` if the recording was discarded or has no head.
    pub(super) fn complete_reply(&mut self) -> Option<ReplyParts> {
        if self.is_discarded {
            return None;
        }
        if !self.buffer.is_empty() {
            self.pieces.push(self.buffer.split().freeze());
        }
        if self.pieces.len() > 1 {
            self.pieces = vec![Bytes::from(self.pieces.concat())];
        }
        let body = self.pieces.first().cloned().unwrap_or_default();
        Some(ReplyParts { head: self.head.clone()?, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::Arc;

    use super::*;
    use crate::gateway::budgets::tenants::Tenant;
    use crate::gateway::budgets::tenants::TenantId;
    use crate::gateway::budgets::tenants::TenantTable;
    use crate::ledger::AccountName;

    fn tenant(table: &Arc<TenantTable>, name: &str) -> Arc<Tenant> {
        table.tenant(TenantId::Account(AccountName::parse(name).expect("a name")))
    }

    proptest! {
        #[test]
        fn what_was_added_comes_out_whole_or_not_at_all(
            sizes in prop::collection::vec(prop_oneof![0..99_usize, 9_000..40_000_usize], 0..9),
            bytes_max in 0..90_000_usize,
        ) {
            let (table, budget) = (Arc::default(), recording_budget());
            let one = tenant(&table, "one");
            let mut collected = ReplyRecorder::new(bytes_max, budget.permit(&one));
            let used = || one.used(Resource::ReplyBytes);
            let head = ReplyHead::new(200, Vec::new());
            collected.set_head(head.clone());
            let mut all = Vec::new();
            for (number, size) in (1_u8..).zip(&sizes) {
                let piece = vec![number; *size];
                all.extend_from_slice(&piece);
                collected.push(&Bytes::from(piece));
            }
            let fits = all.len() <= bytes_max;
            prop_assert_eq!(used(), if fits { all.len() } else { 0 });
            for _ in 0..2 {
                let body = all.clone().into();
            let reply = fits.then(|| ReplyParts { head: head.clone(), body });
                prop_assert_eq!(collected.complete_reply(), reply);
            }
            drop(collected);
            prop_assert_eq!(used(), 0);
        }
    }

    #[test]
    fn those_of_an_account_have_a_bound_and_leave_room_for_others() {
        let (table, budget) = (Arc::default(), recording_budget());
        let [one, other] = ["one", "other"].map(|name| tenant(&table, name));
        let large = Bytes::from(vec![0; ACCOUNT_BYTES_MAX / 2 + 1]);
        let collect = |tenant| {
            let mut collected = ReplyRecorder::new(usize::MAX, budget.permit(tenant));
            collected.set_head(ReplyHead::new(200, Vec::new()));
            collected.push(&large);
            collected
        };
        let mut all = [collect(&one), collect(&one), collect(&other)];
        assert_eq!(all.each_mut().map(|one| one.complete_reply().is_some()), [true, false, true]);
        assert_eq!(all.map(|one| one.bytes()), [large.len(), 0, large.len()]);
        assert_eq!((one.used(Resource::ReplyBytes), budget.pool().used()), (0, 0));
    }
}
