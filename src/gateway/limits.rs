//! The limits and timeouts of the gateway, from the configuration.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::toml_reader::{ConfigError, TableReader};

/// The `[limits]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a JSON body, at most.
    pub json_bytes_max: usize,
    /// Bytes of an image to be edited, at most.
    pub image_bytes_max: usize,
    /// Bytes of an image that a video begins with, at most.
    pub video_image_bytes_max: usize,
    /// Bytes of uploaded images in memory at a time, at most.
    pub uploads_bytes_max: usize,
    /// Of these, bytes of one account, besides the one image that is always let through; 0 for no
    /// bound.
    pub uploads_per_account_bytes_max: usize,
    /// Bytes of a reply that is recorded for a client that repeats its call, at most.
    pub reply_bytes_max: usize,
    /// Bytes of all other request bodies in memory at a time, at most; 0 for no bound.
    pub bodies_bytes_max: usize,
    /// Of these, bytes of one account; 0 for no bound.
    pub bodies_per_account_bytes_max: usize,
    /// Bytes of answers that are in memory at a time, until clients have read them; 0 for no bound.
    pub answers_bytes_max: usize,
    /// Of these, bytes of one account; 0 for no bound per account.
    pub answers_per_account_bytes_max: usize,
    /// Bytes per second at which a body must arrive, measured over [`Timeouts::head`]; 0 for any
    /// rate.
    pub body_rate_min: u64,
    /// Bytes of a request's head, at most.
    pub head_bytes_max: usize,
    /// Connections, at most; 0 for as many as the system allows.
    pub connections_max: usize,
    /// Connections from one address, at most; 0 for no bound.
    pub connections_per_address_max: usize,
    /// Requests in flight, at most; 0 for no bound.
    pub requests_max: usize,
    /// Of these, requests of one account; 0 for no bound.
    pub requests_per_account_max: usize,
    /// Of these, requests from one address whose API key is not known yet; 0 for no bound.
    pub requests_per_address_max: usize,
}

/// The allowed values of `head_bytes_max`. With less, no client could send a request; with more,
/// pingora would refuse the longest heads.
const HEAD_BYTES_RANGE: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            json_bytes_max: 32 << 20,
            image_bytes_max: 25 << 20,
            video_image_bytes_max: 4 << 20,
            uploads_bytes_max: 48 << 20,
            uploads_per_account_bytes_max: 16 << 20,
            reply_bytes_max: 8 << 20,
            bodies_bytes_max: 512 << 20,
            bodies_per_account_bytes_max: 256 << 20,
            answers_bytes_max: 512 << 20,
            answers_per_account_bytes_max: 128 << 20,
            body_rate_min: 1_000,
            head_bytes_max: 32 << 10,
            connections_max: 0,
            connections_per_address_max: 1_024,
            requests_max: 8_192,
            requests_per_account_max: 1_024,
            requests_per_address_max: 1_024,
        }
    }
}

impl Limits {
    /// Reads the section.
    pub(crate) fn parse(table: &mut TableReader, errors: &mut Vec<ConfigError>) -> Limits {
        let mut limits = Limits::default();
        let mut read = |key, bytes: &mut usize| {
            let value = table.integer(key, errors).and_then(|n| n.try_into().ok());
            *bytes = value.unwrap_or(*bytes);
        };
        read("json_bytes_max", &mut limits.json_bytes_max);
        read("image_bytes_max", &mut limits.image_bytes_max);
        read("video_image_bytes_max", &mut limits.video_image_bytes_max);
        read("uploads_bytes_max", &mut limits.uploads_bytes_max);
        read("uploads_per_account_bytes_max", &mut limits.uploads_per_account_bytes_max);
        read("reply_bytes_max", &mut limits.reply_bytes_max);
        read("bodies_bytes_max", &mut limits.bodies_bytes_max);
        read("bodies_per_account_bytes_max", &mut limits.bodies_per_account_bytes_max);
        read("answers_bytes_max", &mut limits.answers_bytes_max);
        read("answers_per_account_bytes_max", &mut limits.answers_per_account_bytes_max);
        read("head_bytes_max", &mut limits.head_bytes_max);
        read("connections_max", &mut limits.connections_max);
        read("connections_per_address_max", &mut limits.connections_per_address_max);
        read("requests_max", &mut limits.requests_max);
        read("requests_per_account_max", &mut limits.requests_per_account_max);
        read("requests_per_address_max", &mut limits.requests_per_address_max);
        limits.body_rate_min =
            table.integer("body_rate_min", errors).unwrap_or(limits.body_rate_min);
        if !HEAD_BYTES_RANGE.contains(&limits.head_bytes_max) {
            let (least, most) = (HEAD_BYTES_RANGE.start(), HEAD_BYTES_RANGE.end());
            let message = format!("'head_bytes_max' must be between {least} and {most}");
            errors.push(table.location.error(message));
        }
        limits
    }
}

/// No timeout may be longer than this, in ms: a day.
const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// The allowed values of `lease_ms`. A hold is renewed four times in its lease, so a shorter lease
/// would cost too many renewals. After a longer lease, an account whose gateway died would get its
/// held money back too late.
const LEASE_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

/// The `[timeouts]` section: how long each step may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client to send the head of a request, and again for each part of its body, as
    /// [`Limits::body_rate_min`] demands it.
    pub head: Duration,
    /// For a client to send its whole body.
    pub body: Duration,
    /// For a client to read a piece of its answer.
    pub client_write: Duration,
    /// For an idle client connection, before it is closed.
    pub keepalive: Duration,
    /// For the ledger to answer before a call is refused.
    pub ledger: Duration,
    /// For a connection to a vendor, TLS included.
    pub connect: Duration,
    /// For a vendor to begin its answer.
    pub answer: Duration,
    /// For the next piece of a vendor's answer to arrive, and for memory in which to hold it.
    pub stall: Duration,
    /// For a vendor's whole answer.
    pub total: Duration,
    /// For reading the rest of a vendor's answer after the client has disconnected.
    pub drain: Duration,
    /// For an idle connection to a vendor, before it is closed.
    pub idle: Duration,
    /// While the async runtime of the gateway lags by more than this, new requests are refused; 0
    /// for never.
    pub shed_lag: Duration,
    /// For a hold, before it expires unless it is renewed.
    pub lease: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            head: Duration::from_secs(10),
            body: Duration::from_secs(120),
            client_write: Duration::from_secs(60),
            keepalive: Duration::from_secs(75),
            ledger: Duration::from_millis(250),
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(300),
            stall: Duration::from_secs(120),
            total: Duration::from_secs(1_800),
            drain: Duration::from_secs(600),
            idle: Duration::from_secs(55),
            shed_lag: Duration::from_millis(500),
            lease: Duration::from_secs(60),
        }
    }
}

impl Timeouts {
    /// Reads the section. Every value is in ms.
    pub(crate) fn parse(table: &mut TableReader, errors: &mut Vec<ConfigError>) -> Timeouts {
        let mut times = Timeouts::default();
        let mut read = |key, time: &mut Duration| {
            let Some(ms) = table.integer(key, errors) else { return };
            if ms > TIMEOUT_MS_MAX {
                errors
                    .push(table.location.error(format!("'{key}' may be {TIMEOUT_MS_MAX} at most")));
            }
            *time = Duration::from_millis(ms.min(TIMEOUT_MS_MAX));
        };
        read("head_ms", &mut times.head);
        read("body_ms", &mut times.body);
        read("client_write_ms", &mut times.client_write);
        read("keepalive_ms", &mut times.keepalive);
        read("ledger_ms", &mut times.ledger);
        read("connect_ms", &mut times.connect);
        read("answer_ms", &mut times.answer);
        read("stall_ms", &mut times.stall);
        read("total_ms", &mut times.total);
        read("drain_ms", &mut times.drain);
        read("idle_ms", &mut times.idle);
        read("shed_lag_ms", &mut times.shed_lag);
        read("lease_ms", &mut times.lease);
        if times.head.is_zero() {
            errors.push(table.location.error("'head_ms' must be 1 at least"));
        }
        if !LEASE_RANGE.contains(&times.lease) {
            let (least, most) = (LEASE_RANGE.start().as_millis(), LEASE_RANGE.end().as_millis());
            errors.push(table.location.error(format!("'lease_ms' may be {least} to {most}")));
        }
        times
    }

    /// Returns the time after which a hold expires unless it is renewed, in ms.
    #[must_use]
    pub(crate) fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }
}
