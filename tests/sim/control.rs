//! The simulator's own pages, for those who run it as a program.

use serde_json::Value;

use super::record::Record;
use super::vendor::Vendor;

const REQUESTS_MAX: usize = 1000;
const BODIES_MAX: usize = 200;

/// The answer to a path that is the simulator's own.
pub(super) fn answer(path: &str, record: &Record) -> Option<String> {
    let body = match path {
        "/_seen" => record.summaries(REQUESTS_MAX).to_string(),
        "/_bodies" => record.contents(BODIES_MAX),
        "/_videos" => record.videos.page().to_string(),
        "/_count" => {
            let names = Vendor::ALL.into_iter().map(Vendor::name);
            let counts = names.map(|name| (name.to_owned(), Value::from(record.count(name))));
            counts.collect::<Value>().to_string()
        }
        "/healthz" => Value::from("ok").to_string(),
        _ => return None,
    };
    Some(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
}
