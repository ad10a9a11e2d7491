//! The context of a span as W3C Trace Context passes it on: the headers `traceparent` and
//! `tracestate`.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::hex::{from_hex, to_hex};

/// The header with the context of the caller's span.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The header with what the caller's tracing systems add to it.
pub(crate) const TRACESTATE: &str = "tracestate";

/// The length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;
/// The flag of a span that is recorded.
const SAMPLED: u8 = 1;
/// A longer `tracestate`, or one with more members, is left out.
const STATE_BYTES_MAX: usize = 512;
const STATE_MEMBERS_MAX: usize = 32;

/// A span, as others refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanContext {
    /// The trace that it belongs to.
    pub trace_id: [u8; 16],
    /// Its own id in that trace.
    pub span_id: [u8; 8],
    /// Whether it is recorded.
    pub is_sampled: bool,
}

impl SpanContext {
    /// Parses the value of a `traceparent`; `None` if it is not exactly one. Of a version that is
    /// not known yet, the part is read that every version has.
    #[must_use]
    pub(crate) fn parse(value: &[u8]) -> Option<SpanContext> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let (known, rest) = value.split_at_checked(PARENT_BYTES)?;
        let text = str::from_utf8(known).ok()?;
        let mut parts = text.split('-');
        let fields = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let is_sound = parts.next().is_none()
            && fields.map(str::len) == [2, 32, 16, 2]
            && fields.iter().all(|field| field.bytes().all(is_digit));
        let [version, trace_id, span_id, flags] = fields;
        let is_whole = rest.is_empty() || (version != "00" && rest.starts_with(b"-"));
        if !is_sound || !is_whole || version == "ff" {
            return None;
        }
        let trace_id: [u8; 16] = from_hex(trace_id)?.try_into().ok()?;
        let span_id: [u8; 8] = from_hex(span_id)?.try_into().ok()?;
        if trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        let flags = from_hex(flags)?.first().copied()?;
        Some(SpanContext { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }

    /// Returns the value of a `traceparent`.
    #[must_use]
    pub(crate) fn to_header(self) -> String {
        let flags = u8::from(self.is_sampled);
        format!("00-{}-{}-{flags:02x}", to_hex(&self.trace_id), to_hex(&self.span_id))
    }
}

/// The span of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallerSpan {
    /// The span.
    pub context: SpanContext,
    /// The caller's `tracestate`; empty if it has none, or one that is out of bounds.
    pub state: String,
}

impl CallerSpan {
    /// Reads the caller's span from the values of the headers `traceparent` and `tracestate`;
    /// `None` if there is not exactly one, or if it is malformed.
    #[must_use]
    pub(crate) fn from_headers<'a>(
        parents: impl IntoIterator<Item = &'a [u8]>,
        states: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<CallerSpan> {
        let mut parents = parents.into_iter();
        let context = SpanContext::parse(parents.next()?)?;
        if parents.next().is_some() {
            return None;
        }
        Some(CallerSpan { context, state: join_states(states).unwrap_or_default() })
    }
}

/// Joins the lines of a `tracestate`; `None` if it is out of bounds or no list of members.
fn join_states<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Option<String> {
    let mut joined = String::new();
    for line in lines {
        let is_visible = line.iter().all(|byte| matches!(byte, b' '..=b'~'));
        let line = str::from_utf8(line).ok().filter(|_| is_visible)?;
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(line);
        if joined.len() > STATE_BYTES_MAX {
            return None;
        }
    }
    let mut members = 0;
    for member in joined.split(',').map(str::trim).filter(|member| !member.is_empty()) {
        members += 1;
        let (key, value) = member.split_once('=')?;
        if members > STATE_MEMBERS_MAX || key.is_empty() || value.is_empty() {
            return None;
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SOUND: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_as_it_is_written() {
        let context = SpanContext::parse(SOUND.as_bytes()).expect("a context");
        assert_eq!(context.to_header(), SOUND);
        let unsampled = SOUND.replace("-01", "-00");
        let context = SpanContext::parse(unsampled.as_bytes()).expect("a context");
        assert!(!context.is_sampled);
        assert_eq!(context.to_header(), unsampled);
        // Other flags mean nothing here, and are not passed on.
        let random = SpanContext::parse(SOUND.replace("-01", "-03").as_bytes());
        assert_eq!(random.expect("a context").to_header(), SOUND);
    }

    #[rstest]
    #[case::empty("")]
    #[case::short("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0")]
    #[case::long("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-")]
    #[case::more("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what")]
    #[case::version("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    #[case::no_version("0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    #[case::later("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x")]
    #[case::capitals("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01")]
    #[case::no_trace("00-00000000000000000000000000000000-b7ad6b7169203331-01")]
    #[case::no_span("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01")]
    #[case::no_digit("00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01")]
    #[case::no_flags("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz")]
    #[case::other_cuts("00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01")]
    #[case::other_dash("00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01")]
    #[case::space(" 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    #[case::no_text("00-0af7651916cd43dd8448eb211c80319\u{e9}-b7ad6b7169203331-01")]
    fn what_is_no_context_is_none(#[case] text: &str) {
        assert_eq!(SpanContext::parse(text.as_bytes()), None);
    }

    #[rstest]
    #[case("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    #[case("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later")]
    fn of_a_later_version_the_known_part_is_read(#[case] text: &str) {
        assert_eq!(SpanContext::parse(text.as_bytes()), SpanContext::parse(SOUND.as_bytes()));
    }

    #[test]
    fn a_caller_has_one_span() {
        let read = |parents: &[&str], states: &[&str]| {
            let parents = parents.iter().map(|value| value.as_bytes());
            CallerSpan::from_headers(parents, states.iter().map(|value| value.as_bytes()))
        };
        let state = |states: &[&str]| read(&[SOUND], states).map(|caller| caller.state);
        assert_eq!(read(&[], &["a=b"]), None);
        assert_eq!(read(&[SOUND, SOUND], &[]), None);
        assert_eq!(state(&[]).as_deref(), Some(""));
        assert_eq!(state(&["a=b,c=d", "e=f"]).as_deref(), Some("a=b,c=d,e=f"));
        let whole = format!("a={}", "b".repeat(510));
        assert_eq!(state(&[&whole]).as_deref(), Some(whole.as_str()));
        let (long, many) = (format!("{whole}b"), "a=b,".repeat(33));
        for bad in ["a", "=b", "a=", "a=b,c", "a=\u{7f}", "a=é", &long, &many] {
            assert_eq!(state(&[bad]).as_deref(), Some(""), "{bad}");
        }
    }
}
