//! The name of the folder of a store's outbox.

use sha2::{Digest, Sha256};

use crate::hex::to_hex;

/// Returns the name of the folder of a store's outbox: a digest of the store's address without
/// users and passwords, with its hosts in a fixed order.
pub(super) fn folder_name_for(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let (hosts, name) = rest.split_once('/').unwrap_or((rest, ""));
    let port = if scheme.ends_with("-sentinel") { 26_379 } else { 6_379 };
    let mut hosts: Vec<String> =
        hosts.split(',').map(|host| with_default_port(host, port)).collect();
    hosts.sort();
    let name = name.trim_end_matches('/');
    let place = format!("{}/{}", hosts.join(","), if name == "0" { "" } else { name });
    to_hex(&Sha256::digest(place)[..8])
}

fn with_default_port(host: &str, port: u16) -> String {
    // The port is the text after the last colon, unless that colon is inside an address in
    // brackets.
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::folder_name_for;

    #[test]
    fn a_store_keeps_its_place_when_its_password_changes() {
        let place = folder_name_for("redis://me:secret@host:6379/1");
        for same in ["redis://host/1", "rediss://you:p@ss@host:6379/1/", "redis://host/1?x=y"] {
            assert_eq!(folder_name_for(same), place, "{same}");
        }
        let cluster = folder_name_for("redis-cluster://a,[::1]:6380,b:6379");
        assert_eq!(folder_name_for("redis-cluster://b,a:6379,[::1]:6380"), cluster);
        assert_eq!(
            folder_name_for("redis-sentinel://a/x"),
            folder_name_for("redis-sentinel://a:26379/x")
        );
        assert_eq!(folder_name_for("redis://[::1]"), folder_name_for("redis://[::1]:6379/0"));
        for other in ["redis://host:6379/2", "redis://host:6380/1", "redis-cluster://host:6379"] {
            assert_ne!(folder_name_for(other), place, "{other}");
        }
        assert!(place.bytes().all(|b| b.is_ascii_hexdigit()) && place.len() == 16);
    }
}
