//! Runs the commands that use the store.

use std::sync::Arc;

use crate::archive::ArchivedUsage;
use crate::conf::Config;
use crate::management::actor::Actor;
use crate::management::context::ManagementContext;
use crate::store::{self, OpenStore};

/// Opens the store of a configuration and runs `run` on it.
pub(super) fn with_store(
    conf: &Config,
    run: impl AsyncFnOnce(OpenStore) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    with_store_alone(conf, async |store| run(attach_archive(conf, store)).await)
}

/// Opens the store of a configuration without the archive, and runs `run` on it.
pub(super) fn with_store_alone(
    conf: &Config,
    run: impl AsyncFnOnce(OpenStore) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    build_runtime()?.block_on(async { run(store::open(&conf.store).await?).await })
}

/// Returns a store that reads lines that have left it from the archive of a configuration.
pub(super) fn attach_archive(conf: &Config, mut store: OpenStore) -> OpenStore {
    let url = conf.journal.archive.clone();
    store.usage = Arc::new(ArchivedUsage::new(store.usage, store.archive.clone(), url));
    store
}

/// Builds the runtime of a command.
pub(super) fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Returns what a change of the store needs that a user of the system makes.
pub(super) fn context<'a>(store: &'a OpenStore, conf: &'a Config) -> ManagementContext<'a> {
    ManagementContext { store, audit: &conf.audit, actor: &Actor::CommandLine }
}
