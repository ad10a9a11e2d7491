//! The vendors, and the habits by which their chat endpoints differ.

/// A vendor whose endpoint is imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vendor {
    A,
    B,
    C,
    D,
    E,
}

impl Vendor {
    pub(super) const ALL: [Vendor; 5] = [Vendor::A, Vendor::B, Vendor::C, Vendor::D, Vendor::E];

    pub(super) fn named(name: &str) -> Option<Vendor> {
        Vendor::ALL.into_iter().find(|vendor| vendor.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Vendor::A => "vendor_a",
            Vendor::B => "vendor_b",
            Vendor::C => "vendor_c",
            Vendor::D => "vendor_d",
            Vendor::E => "vendor_e",
        }
    }

    /// The part of its base url which follows the host.
    pub(super) fn version(self) -> &'static str {
        match self {
            Vendor::A | Vendor::B | Vendor::D => "v1",
            Vendor::C => "v1beta/openai",
            Vendor::E => "v1/openai",
        }
    }

    /// Whether `completion_tokens` holds the reasoning too.
    pub(super) fn counts_reasoning_inside(self) -> bool {
        matches!(self, Vendor::A | Vendor::B | Vendor::E)
    }

    /// Whether the bound on tokens holds for the visible ones only.
    pub(super) fn bounds_only_visible(self) -> bool {
        self == Vendor::D
    }

    /// Whether a tool call comes in one delta, its arguments not cut in pieces.
    pub(super) fn sends_whole_tool_calls(self) -> bool {
        matches!(self, Vendor::C | Vendor::D)
    }

    /// Whether every delta names the role, and no first delta stands for it alone.
    pub(super) fn repeats_role(self) -> bool {
        self == Vendor::C
    }

    pub(super) fn reply_id(self, serial: u64) -> String {
        match self {
            Vendor::A => format!("msg_sim{serial:012}"),
            Vendor::B => format!("chatcmpl-Sim{serial:012}"),
            Vendor::C => format!("sim{serial:012}"),
            Vendor::D => format!("5e110000-0000-4000-8000-{serial:012x}"),
            Vendor::E => format!("chatcmpl-{serial:032x}"),
        }
    }
}

/// Headers about the account of the gateway, which no client of it may see.
pub(super) const ACCOUNT_HEADERS: &str = "openai-organization: org-sim-account\r\n\
    x-ratelimit-limit-requests: 10000\r\n\
    x-ratelimit-remaining-requests: 9999\r\n\
    x-ratelimit-reset-requests: 6ms\r\n\
    set-cookie: __sim_edge=account-secret; path=/; HttpOnly; Secure\r\n\
    server: sim-edge\r\n";
