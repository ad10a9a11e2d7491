//! The vendors, and the habits by which they differ.

/// A vendor whose endpoints are imitated.
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

    /// The header in which it names a request.
    pub(super) fn request_id_header(self) -> &'static str {
        match self {
            Vendor::A => "request-id",
            _ => "x-request-id",
        }
    }

    /// Headers about the account of the gateway, which no client of it may see.
    pub(super) fn account_headers(self) -> &'static str {
        match self {
            Vendor::A => MESSAGES_ACCOUNT_HEADERS,
            _ => CHAT_ACCOUNT_HEADERS,
        }
    }

    /// The name and the data of the event that ends a stream of conversation.
    pub(super) fn last_event(self) -> (&'static str, &'static str) {
        match self {
            Vendor::A => ("message_stop", r#"{"type":"message_stop"}"#),
            _ => ("", "[DONE]"),
        }
    }

    /// The status whose error comes in the middle of a stream.
    pub(super) fn status_within_stream(self) -> u16 {
        if self == Vendor::A { 529 } else { 503 }
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

    /// The id of a tool call. `vendor_a`'s tells whether the reply was thought about.
    pub(super) fn call_id(self, serial: u64, index: u64, thought: bool) -> String {
        match self {
            Vendor::A if thought => format!("{THOUGHTFUL}{serial}_{index}"),
            Vendor::A => format!("toolu_sim{serial}_{index}"),
            _ => format!("call_sim{serial}_{index}"),
        }
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

/// How the ids of tool calls begin that followed a thought.
pub(super) const THOUGHTFUL: &str = "toolu_thought";

const CHAT_ACCOUNT_HEADERS: &str = "openai-organization: org-sim-account\r\n\
    x-ratelimit-limit-requests: 10000\r\n\
    x-ratelimit-remaining-requests: 9999\r\n\
    x-ratelimit-reset-requests: 6ms\r\n\
    set-cookie: __sim_edge=account-secret; path=/; HttpOnly; Secure\r\n\
    server: sim-edge\r\n";

const MESSAGES_ACCOUNT_HEADERS: &str = "vendor_a-organization-id: org-sim-account\r\n\
    vendor_a-ratelimit-requests-limit: 10000\r\n\
    vendor_a-ratelimit-requests-remaining: 9999\r\n\
    vendor_a-ratelimit-requests-reset: 2026-11-21T12:00:01Z\r\n\
    vendor_a-ratelimit-tokens-limit: 2400000\r\n\
    vendor_a-ratelimit-tokens-remaining: 2399000\r\n\
    vendor_a-ratelimit-tokens-reset: 2026-11-21T12:00:01Z\r\n\
    vendor_a-ratelimit-input-tokens-limit: 2000000\r\n\
    vendor_a-ratelimit-input-tokens-remaining: 1999000\r\n\
    vendor_a-ratelimit-input-tokens-reset: 2026-11-21T12:00:01Z\r\n\
    vendor_a-ratelimit-output-tokens-limit: 400000\r\n\
    vendor_a-ratelimit-output-tokens-remaining: 400000\r\n\
    vendor_a-ratelimit-output-tokens-reset: 2026-11-21T12:00:00Z\r\n\
    set-cookie: __sim_edge=account-secret; path=/; HttpOnly; Secure\r\n\
    server: sim-edge\r\n";
