//! The credentials that are read again at SIGHUP: the certificate for clients, and the keys of the
//! vendors.

use std::sync::Arc;

use anyhow::Context as _;
use pingora::listeners::tls::Acceptor;

use super::super::settings::load_config;
use super::certificate::ServerCertificate;
use crate::conf::Config;
use crate::gateway::upstream::routes::RouteTable;

/// The credentials that can be reloaded.
pub(super) struct ReloadableCredentials {
    /// The configuration file, which names the sources of the keys.
    pub(super) conf_file: String,
    pub(super) routes: Arc<RouteTable>,
    pub(super) certificate: Option<Arc<ServerCertificate>>,
}

impl ReloadableCredentials {
    /// Loads the certificate. The routes have their keys already.
    ///
    /// # Errors
    /// The certificate or its key cannot be loaded from the configured files.
    pub(super) fn load(
        conf: &Config,
        conf_file: &str,
        routes: Arc<RouteTable>,
    ) -> anyhow::Result<ReloadableCredentials> {
        let certificate = conf.listen.tls.as_ref().map(ServerCertificate::load);
        let certificate = certificate.transpose().context("listen.tls")?;
        Ok(ReloadableCredentials { conf_file: conf_file.to_owned(), routes, certificate })
    }

    /// Returns the TLS acceptor for clients; `None` if they speak no TLS to this process.
    pub(super) fn acceptor(&self) -> Option<Acceptor> {
        self.certificate.as_ref().map(ServerCertificate::acceptor)
    }

    /// Loads the certificate and the keys again. What cannot be loaded stays as it was. Returns
    /// whether all could be loaded.
    pub(super) fn reload(&self) -> bool {
        let has_certificate =
            self.certificate.as_ref().is_none_or(|certificate| certificate.reload());
        let has_keys = match load_config(&self.conf_file) {
            Ok(conf) => self.routes.reload_keys(&conf.vendors),
            Err(why) => {
                let why = format!("{why:#}");
                let event = "vendor_keys_reload_failed";
                log::error!(event, error:% = why; "vendor keys not reloaded");
                false
            }
        };
        has_certificate && has_keys
    }
}
