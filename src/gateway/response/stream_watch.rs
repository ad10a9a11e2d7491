//! What happens to a stream while it waits for its vendor: its cost so far goes to the ledger, and
//! it ends if its account is suspended.

use std::pin::{Pin, pin};
use std::time::Instant;

use tokio::time::{Sleep, sleep};

use crate::dialect::relay::RelayError;
use crate::gateway::context::{RelayedCall, RequestContext};
use crate::gateway::settlement::stream_holds::{self, CHECKPOINT_INTERVAL};
use crate::gateway::state::Gateway;
use crate::gateway::suspended_accounts::SuspensionWatch;
use crate::gateway::upstream::answer::UpstreamRead;

/// Watches over a stream. Of another response nothing is watched: the client has nothing of it
/// before it ends, and the vendor's work is paid for as a whole.
pub(super) struct StreamWatch<'a>(Option<WatchedStream<'a>>);

struct WatchedStream<'a> {
    /// When the ledger is to record what the stream has cost so far.
    checkpoint_due: Pin<Box<Sleep>>,
    suspension: SuspensionWatch<'a>,
}

impl<'a> StreamWatch<'a> {
    /// Begins to watch over a response, which may be no stream.
    pub(super) fn begin(
        gateway: &'a Gateway,
        ctx: &RequestContext,
        is_stream: bool,
    ) -> StreamWatch<'a> {
        StreamWatch(is_stream.then(|| WatchedStream {
            checkpoint_due: Box::pin(sleep(CHECKPOINT_INTERVAL)),
            suspension: gateway.suspended.watch_since(ctx.suspensions_seen),
        }))
    }

    /// Waits for a read, and writes checkpoints meanwhile. If the account is suspended before or in
    /// the meantime, the read fails at once: a silent vendor would keep the stream open. Returns
    /// the read, and when it ended.
    pub(super) async fn await_read(
        &mut self,
        gateway: &Gateway,
        ctx: &mut RequestContext,
        relaying: &mut RelayedCall,
        reading: impl Future<Output = UpstreamRead>,
    ) -> (UpstreamRead, Instant) {
        let began = Instant::now();
        // A change from before the vendor began to answer wakes nobody.
        if self.ends_by_suspension(ctx, relaying) {
            return (UpstreamRead::Failed(RelayError::AccountSuspended), began);
        }
        let mut reading = pin!(reading);
        let read = loop {
            let Some(watched) = &mut self.0 else { break reading.await };
            let WatchedStream { checkpoint_due, suspension } = watched;
            tokio::select! {
                biased;
                () = checkpoint_due.as_mut() => {
                    stream_holds::write_checkpoint(gateway, ctx, relaying);
                    let next = tokio::time::Instant::now() + CHECKPOINT_INTERVAL;
                    checkpoint_due.as_mut().reset(next);
                }
                read = &mut reading => break read,
                () = suspension.await_change() => {
                    if self.ends_by_suspension(ctx, relaying) {
                        break UpstreamRead::Failed(RelayError::AccountSuspended);
                    }
                }
            }
        };
        let ended = Instant::now();
        ctx.vendor_time += ended - began;
        (read, ended)
    }

    /// Whether the stream must end because its account is suspended, as far as that has changed
    /// since the last look. Costs one load if nothing has changed.
    pub(super) fn ends_by_suspension(
        &mut self,
        ctx: &RequestContext,
        relaying: &RelayedCall,
    ) -> bool {
        let Some(WatchedStream { suspension, .. }) = &mut self.0 else { return false };
        // If the vendor has reported the whole usage, the end is near and costs nothing more.
        suspension.notices(ctx.access_log.account.as_ref()) && !relaying.relay.has_final_report()
    }
}
