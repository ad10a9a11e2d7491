//! Runs the commands that use the store.

use crate::conf::Config;
use crate::store::{self, OpenStore};

/// Opens the store of a configuration and runs `run` on it.
pub(super) fn with_store(
    conf: &Config,
    run: impl AsyncFnOnce(OpenStore) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    build_runtime()?.block_on(async {
        let opened = store::open(&conf.store).await?;
        run(opened).await
    })
}

/// Builds the runtime of a command.
pub(super) fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
