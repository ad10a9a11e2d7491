//! The log: one line per event, with fields beside the message, as text or JSON, on standard error.

use std::io::Write;

use env_logger::fmt::Formatter;
use log::kv::{Error, Key, Value, VisitSource};
use log::{Level, LevelFilter, Record};
use serde_json::{Map, Value as Json};

use crate::clock;
use crate::conf::LogSection;
use crate::metrics::METRICS;

/// Starts the log of the gateway. Log lines of the libraries are written from the level `warn` on.
pub(super) fn start(section: LogSection) {
    let write = if section.json { json_line } else { text_line };
    let others = section.level.min(LevelFilter::Warn);
    env_logger::Builder::new()
        .filter_level(others)
        .filter_module("tollgate", section.level)
        .filter_module("request", section.level)
        // pingora logs an error while the other process has not connected yet.
        .filter_module("pingora_core::server::transfer_fd", LevelFilter::Off)
        .format(write)
        .init();
}

/// Starts the log of a command that does a single task. Only warnings about files that were open to
/// other users are logged, and audit lines that were lost; the command prints everything else
/// itself.
pub(super) fn start_for_commands(section: LogSection) {
    let write = if section.json { json_line } else { text_line };
    env_logger::Builder::new()
        .filter_level(LevelFilter::Off)
        .filter_module("tollgate::permissions", section.level.min(LevelFilter::Warn))
        .filter_module("tollgate::management::audit", section.level.min(LevelFilter::Error))
        .format(write)
        .init();
}

/// Counts a line by its event; those of libraries have none.
fn count(record: &Record<'_>, fields: &LogFields) {
    if record.level() > Level::Warn {
        return;
    }
    let event = fields.0.get("event").and_then(Json::as_str).unwrap_or_default();
    let level = if record.level() == Level::Error { "error" } else { "warn" };
    METRICS.logged.with_label_values(&[level, event]).inc();
}

fn json_line(out: &mut Formatter, record: &Record<'_>) -> std::io::Result<()> {
    let mut fields = LogFields(Map::new());
    fields.0.insert("at".to_owned(), clock::timestamp().to_string().into());
    fields.0.insert("level".to_owned(), record.level().as_str().to_lowercase().into());
    fields.0.insert("message".to_owned(), record.args().to_string().into());
    // Taking the fields cannot fail: the visitor accepts every field.
    let _ = record.key_values().visit(&mut fields);
    count(record, &fields);
    writeln!(out, "{}", Json::Object(fields.0))
}

fn text_line(out: &mut Formatter, record: &Record<'_>) -> std::io::Result<()> {
    let level = record.level().as_str().to_lowercase();
    let mut fields = LogFields(Map::new());
    // This cannot fail either.
    let _ = record.key_values().visit(&mut fields);
    count(record, &fields);
    let fields: String = fields.0.iter().map(|(k, v)| format!(" {k}={v}")).collect();
    writeln!(out, "{} {level} {}{fields}", clock::timestamp(), record.args())
}

struct LogFields(Map<String, Json>);

impl<'kvs> VisitSource<'kvs> for LogFields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        let json = if let Some(n) = value.to_u64() {
            n.into()
        } else if let Some(n) = value.to_i64() {
            n.into()
        } else if let Some(b) = value.to_bool() {
            b.into()
        } else {
            value.to_string().into()
        };
        self.0.insert(key.to_string(), json);
        Ok(())
    }
}
