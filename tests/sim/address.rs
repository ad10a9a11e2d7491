//! What the path of a request says: a vendor, faults, and the endpoint.

use super::vendor::Vendor;

/// The endpoint of a vendor, with the faults asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub(super) vendor: Vendor,
    /// The segment as written; empty when there is none.
    pub(super) faults: &'a str,
}

impl<'a> Address<'a> {
    /// Reads `/{vendor}[/{faults}]/{version}` and the endpoint of that vendor.
    pub(super) fn parse(path: &'a str) -> Option<Address<'a>> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let (vendor, rest) = path.strip_prefix('/')?.split_once('/')?;
        let vendor = Vendor::named(vendor)?;
        let rest = rest.strip_suffix(vendor.endpoint())?.strip_suffix(vendor.version())?;
        let faults = match rest.strip_suffix('/') {
            Some(faults) if !faults.contains('/') => faults,
            None if rest.is_empty() => "",
            _ => return None,
        };
        Some(Address { vendor, faults })
    }
}

/// The first segment of a path, for the record of requests that lead nowhere.
pub(super) fn first_segment(path: &str) -> &str {
    path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_stand_between_vendor_and_version() {
        let plain = Address::parse("/vendor_c/v1beta/openai/chat/completions");
        assert_eq!(plain, Some(Address { vendor: Vendor::C, faults: "" }));
        let faulty = Address::parse("/vendor_e/cut=2;crlf/v1/openai/chat/completions?a=b");
        assert_eq!(faulty, Some(Address { vendor: Vendor::E, faults: "cut=2;crlf" }));
        let messages = Address::parse("/vendor_a/refusal/v1/messages?beta=true");
        assert_eq!(messages, Some(Address { vendor: Vendor::A, faults: "refusal" }));
        for wrong in [
            "/vendor_a/v1/chat/completions",
            "/vendor_a/v1/messages/count_tokens",
            "/vendor_b/v1/messages",
            "/vendor_e/v1/chat/completions",
            "/vendor_b/cut=2/more/v1/chat/completions",
            "/vendor_f/v1/chat/completions",
            "/vendor_b/v1/completions",
        ] {
            assert_eq!(Address::parse(wrong), None, "{wrong}");
        }
    }
}
