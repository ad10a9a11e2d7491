//! Where browsers find the console: the address that its links have, the hosts that it answers to,
//! and what follows from them for cookies.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::net::SocketAddr;

use crate::conf::Config;

/// The names of the cookie: with and without TLS, where browsers refuse the prefix by which they
/// take a cookie from one host alone, for all its paths.
const COOKIES: [&str; 2] = ["__Host-tollgate", "tollgate"];
/// Those at the address for customers: browsers send a cookie to all ports of a host.
const CUSTOMER_COOKIES: [&str; 2] = ["__Host-tollgate-customer", "tollgate-customer"];

/// Where browsers find the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsoleAddress {
    /// The origin of its pages, such as `https://console.example.com`.
    origin: String,
    /// What the `Host` header of a request may be, in lower case.
    hosts: Vec<String>,
    is_secure: bool,
    is_for_customers: bool,
}

impl ConsoleAddress {
    /// Returns the address of a console whose public address is `url`, such as
    /// `https://console.example.com`; or, without one, of a console that listens at `listen`. One
    /// that listens on this machine alone may be called `localhost` as well.
    pub(crate) fn new(url: Option<&str>, listen: &str, is_for_customers: bool) -> ConsoleAddress {
        if let Some(url) = url {
            let (scheme, host) = url.split_once("://").unwrap_or(("https", url));
            return ConsoleAddress {
                origin: url.to_owned(),
                hosts: vec![host.to_ascii_lowercase()],
                is_secure: scheme == "https",
                is_for_customers,
            };
        }
        let mut hosts = vec![listen.to_ascii_lowercase()];
        if let Ok(socket) = listen.parse::<SocketAddr>()
            && socket.ip().is_loopback()
        {
            hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(|host| {
                let port = socket.port();
                format!("{host}:{port}")
            }));
        }
        let origin = format!("http://{listen}");
        ConsoleAddress { origin, hosts, is_secure: false, is_for_customers }
    }

    /// Returns the address at which a customer, or else an operator, signs in; `None` if there is
    /// no console. A customer is sent to the pages for customers alone, unless only the console has
    /// a public address.
    pub(crate) fn of_links(conf: &Config, is_customer: bool) -> Option<ConsoleAddress> {
        let (listen, section) = (&conf.listen, &conf.console);
        let (url, customers_url) = (section.url.as_deref(), section.customers_url.as_deref());
        if let Some(listen) = listen.customers.as_ref().filter(|_| is_customer)
            && (customers_url.is_some() || url.is_none() || conf.listen.console.is_none())
        {
            return Some(ConsoleAddress::new(customers_url, listen, true));
        }
        listen.console.as_ref().map(|listen| ConsoleAddress::new(url, listen, false))
    }

    /// Returns the address of a path of the console.
    pub(crate) fn link(&self, path: &str) -> String {
        [&self.origin, path].concat()
    }

    /// Whether a host is the one that links have.
    pub(crate) fn is_host_of_links(&self, host: &str) -> bool {
        let known = self.origin.split_once("://").map(|(_, known)| known);
        known.is_some_and(|known| host.eq_ignore_ascii_case(known))
    }

    /// Whether a request may be for this host.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| host.eq_ignore_ascii_case(known))
    }

    /// Whether a page of this origin has sent a request, as its `Origin` header says.
    pub(crate) fn is_origin(&self, origin: &str) -> bool {
        let scheme = if self.is_secure { "https://" } else { "http://" };
        origin.strip_prefix(scheme).is_some_and(|host| self.is_host(host))
    }

    /// Whether browsers reach the console over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns the name of the cookie of a session.
    pub(crate) fn cookie_name(&self) -> &'static str {
        let names = if self.is_for_customers { CUSTOMER_COOKIES } else { COOKIES };
        names[usize::from(!self.is_secure)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_on_this_machine_has_the_names_of_this_machine() {
        let address = ConsoleAddress::new(None, "127.0.0.1:9091", false);
        for host in ["127.0.0.1:9091", "localhost:9091", "LOCALHOST:9091", "[::1]:9091"] {
            assert!(address.is_host(host), "{host}");
            assert!(address.is_origin(&format!("http://{host}")), "{host}");
        }
        for host in ["localhost", "evil.example:9091", "127.0.0.1:9090", "", "127.0.0.1.evil:9091"]
        {
            assert!(!address.is_host(host), "{host}");
        }
        assert!(!address.is_origin("https://localhost:9091") && !address.is_origin("null"));
        assert!(address.is_host_of_links("127.0.0.1:9091"));
        assert!(!address.is_host_of_links("localhost:9091"));
        assert_eq!(address.cookie_name(), "tollgate");
        assert_eq!(address.link("/x"), "http://127.0.0.1:9091/x");
    }

    #[test]
    fn a_console_with_a_public_address_has_that_host_alone() {
        let address = ConsoleAddress::new(Some("https://pay.example.com"), "0.0.0.0:9091", false);
        assert!(address.is_host("Pay.example.com") && !address.is_host("0.0.0.0:9091"));
        assert!(address.is_origin("https://pay.example.com"));
        assert!(!address.is_origin("http://pay.example.com"));
        assert_eq!(address.cookie_name(), "__Host-tollgate");
        let customers = ConsoleAddress::new(Some("https://pay.example.com"), "0.0.0.0:9092", true);
        assert_eq!(customers.cookie_name(), "__Host-tollgate-customer");
    }

    #[test]
    fn a_console_on_another_address_has_that_one_alone() {
        let address = ConsoleAddress::new(None, "10.0.0.1:9091", false);
        assert!(address.is_host("10.0.0.1:9091") && !address.is_host("localhost:9091"));
    }
}
