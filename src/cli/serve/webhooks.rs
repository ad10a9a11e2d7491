//! Watches for events and sends the messages of webhooks while the gateway serves: on a thread of
//! its own, so that no call waits for an endpoint.

use std::sync::Arc;

use anyhow::Context as _;

use crate::cli::runtime::build_runtime;
use crate::clock::unix_ms;
use crate::conf::Config;
use crate::gateway::upstream::routes::RouteTable;
use crate::notifier::changed_accounts::ChangedAccounts;
use crate::notifier::sender::WebhookSender;
use crate::notifier::watcher::WebhookWatcher;
use crate::notifier::{EndpointPresence, RouteState, WebhookClient};
use crate::store::{self, OpenStore};

/// Starts the thread. An embedded store is shared with the rest of the process, which is `store`;
/// to a server the thread has connections of its own. Returns where the journals' follower tells
/// whose journals have grown.
pub(super) fn spawn(
    conf: &Config,
    store: &OpenStore,
    routes: &Arc<RouteTable>,
) -> anyhow::Result<Arc<ChangedAccounts>> {
    let changed = Arc::<ChangedAccounts>::default();
    let store =
        if conf.store.is_embedded() { store.clone() } else { store::open_lazily(&conf.store)? };
    let section = &conf.webhooks;
    let ca = section.ca.as_ref().map(|path| {
        std::fs::read(path).with_context(|| format!("webhooks.ca: cannot read {path}"))
    });
    let client = WebhookClient::new(section.allow_private, ca.transpose()?.as_deref())?;
    let (runtime, routes, told) = (build_runtime()?, routes.clone(), changed.clone());
    let run = move || {
        let presence = Arc::<EndpointPresence>::default();
        let sender = WebhookSender::new(store.webhooks.clone(), client, presence.clone());
        let states = || read_states(&routes);
        let watcher = WebhookWatcher::new(&store.webhooks, &store.ledger, &told, &presence, states);
        runtime.block_on(async { tokio::join!(watcher.run(), sender.run()) });
    };
    std::thread::Builder::new().name("webhooks".to_owned()).spawn(run)?;
    Ok(changed)
}

fn read_states(routes: &RouteTable) -> Vec<RouteState> {
    let now = unix_ms();
    let read = |route: &crate::gateway::upstream::routes::VendorRoute| {
        let (state, reason) = route.state_at(now);
        let down = (state != "up").then(|| reason.to_owned());
        RouteState { vendor: route.vendor.clone(), route: route.name.clone(), down }
    };
    routes.all().map(|route| read(route)).collect()
}
