//! What the process shows of itself, read again at SIGHUP: the certificate that clients see, and
//! the keys of the vendors.

use std::sync::Arc;

use anyhow::Context as _;

use super::super::settings::load_config;
use super::certificate::ServerCertificate;
use crate::conf::Config;
use crate::gateway::upstream::routes::RouteTable;

/// See the module.
pub(super) struct ReloadableCredentials {
    /// The configuration file, which says where the keys are.
    pub(super) conf_file: String,
    pub(super) routes: Arc<RouteTable>,
    pub(super) certificate: Option<Arc<ServerCertificate>>,
}

impl ReloadableCredentials {
    /// Reads the certificate. The routes have their keys already.
    ///
    /// # Errors
    /// There is no certificate where the configuration says, or its key is not there.
    pub(super) fn load(
        conf: &Config,
        conf_file: &str,
        routes: Arc<RouteTable>,
    ) -> anyhow::Result<ReloadableCredentials> {
        let certificate = conf.listen.tls.as_ref().map(ServerCertificate::load);
        let certificate = certificate.transpose().context("listen.tls")?;
        Ok(ReloadableCredentials { conf_file: conf_file.to_owned(), routes, certificate })
    }

    /// Reads all of it again. What cannot be read stays as it was.
    pub(super) fn reload(&self) {
        if let Some(certificate) = &self.certificate {
            certificate.reload();
        }
        match load_config(&self.conf_file) {
            Ok(conf) => self.routes.reload_keys(&conf.vendors),
            Err(why) => {
                let why = format!("{why:#}");
                let event = "vendor_keys_reload_failed";
                log::error!(event, why:% = why; "vendor keys not reloaded");
            }
        }
    }
}
