//! Tells the live feed of a call that has ended.

use super::live_feed::{EndedCall, Happening, LiveFeed};
use super::reading::is_call;
use crate::clock::unix_ms;
use crate::gateway::context::RequestContext;

/// Notes a call that has ended, if it was one of an account. Whoever has no key could otherwise
/// fill the feed.
pub(crate) fn note_ended_call(feed: &LiveFeed, ctx: &RequestContext) {
    let record = &ctx.access_log;
    let Some(account) = record.account.clone().filter(|_| is_call(record.endpoint)) else { return };
    let now = unix_ms();
    if !feed.takes_call(now) {
        return;
    }
    let call = EndedCall {
        account,
        model: record.model.as_ref().map_or_else(String::new, |model| model.id.clone()),
        endpoint: record.endpoint,
        status: record.status,
        charged: record.charge,
        took_ms: u64::try_from(ctx.arrived.elapsed().as_millis()).unwrap_or(u64::MAX),
        route: record.route.as_ref().map_or_else(String::new, |route| {
            let (vendor, name) = (&route.vendor, &route.name);
            format!("{vendor} / {name}")
        }),
    };
    feed.note(now, Happening::CallEnded(call));
}
