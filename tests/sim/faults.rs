//! Faults and wishes that a request asks for in its own address.

/// One thing that a simulated vendor can be told to do.
///
/// They stand in one segment of the path, divided by `;`, and combine. N, S, MS and K are
/// whole numbers. A *chunk* is one event of a stream that carries data, the first (the role)
/// and the last (the usage) included, `[DONE]` and comments not; "after N chunks" of a shorter
/// stream is before its `[DONE]`. *Billed* says what [`Seen::billed`] holds, where it is not
/// the whole reply.
///
/// ```text
/// status=N            answers N with the vendor's error body; billed: nothing
/// retry-after=S       adds that header to the status
/// times=K             status only for the first K requests to this very address; without
///                     status, the faults which break an answer only for them
/// delay=MS            waits before the answer
/// stall=N             streams: silent after N chunks; whole: before the head for N=0,
///                     otherwise after half of the body; holds until the peer closes, 30 s
///                     at most; billed of a stream: N chunks
/// cut=N               closes after N chunks; whole: after half of the body;
///                     billed of a stream: N chunks
/// reset=N             as cut, but with RST; N=0: before any byte, billed: nothing
/// garbage             200 and bytes that are neither JSON nor events; billed: nothing
/// wrong-length=long   content-length 100 too large, then a close; a stream comes with a
///                     content-length too
/// wrong-length=short  content-length of half the body, of which all is sent; stays open
/// gzip                the answer compressed, though nobody asked; as with wrong-length, a
///                     stream is one body then, with the faults of whole replies
/// split-utf8          400 bytes one by one, the rest by threes, each in a write (of streams:
///                     an HTTP chunk) of its own; the text is full of long characters
/// huge-header         a header of 512 KiB
/// no-usage            no usage anywhere
/// null-usage          usage: null, and no usage chunk
/// bad-usage           usage of negative, broken and overflowing numbers
/// error-event=N       after N chunks the vendor's error as an event, then the end without
///                     [DONE], then a close; billed: N chunks; streams only
/// no-done             the stream ends well, but without [DONE]
/// prompt=N            the prompt tokens to report; otherwise bytes of the request / 4 + 1
/// completion=N        the completion_tokens to report, of all choices; otherwise the words
///                     of the text (8 for a tool call) times n, and the reasoning where the
///                     vendor counts it inside
/// reasoning=N         the reasoning tokens to report; otherwise 0
/// reasoning-apart     reasoning outside completion_tokens, whatever the vendor's habit
/// chunks=N            content chunks of a choice; otherwise one per word; the usual text
///                     then has N words
/// chunk-delay=MS      waits between chunks
/// tools=N             N parallel tool calls, if the request has tools
/// old-tools           tool calls of streams without index, with an empty id and the
///                     finish_reason stop, from vendor_c and vendor_d
/// reply-bytes=N       the length of the text
/// echo                the text is {"bytes":…,"fnv":"…"}: the length of the request's body
///                     and its FNV-1a (64 bit) in 16 hex digits
/// keep-open=MS        waits between [DONE] and the end of the stream
/// crlf                lines of events end with CR LF
/// comments            : keep-alive between the events
/// hangup-stops        stops generating when the client hangs up; billed: until then;
///                     streams only
/// fast                a static answer for benchmarks, not recorded; stands alone
/// ```
///
/// [`Seen::billed`]: super::Seen::billed
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Status,
    RetryAfter,
    Times,
    Delay,
    Stall,
    Cut,
    Reset,
    Garbage,
    LengthLong,
    LengthShort,
    Gzip,
    SplitUtf8,
    HugeHeader,
    NoUsage,
    NullUsage,
    BadUsage,
    ErrorEvent,
    NoDone,
    Prompt,
    Completion,
    Reasoning,
    ReasoningApart,
    Chunks,
    ChunkDelay,
    Tools,
    OldTools,
    ReplyBytes,
    Echo,
    KeepOpen,
    Crlf,
    Comments,
    HangupStops,
}

const WITH_NUMBER: [(&str, Fault); 16] = [
    ("status", Fault::Status),
    ("retry-after", Fault::RetryAfter),
    ("times", Fault::Times),
    ("delay", Fault::Delay),
    ("stall", Fault::Stall),
    ("cut", Fault::Cut),
    ("reset", Fault::Reset),
    ("error-event", Fault::ErrorEvent),
    ("prompt", Fault::Prompt),
    ("completion", Fault::Completion),
    ("reasoning", Fault::Reasoning),
    ("chunks", Fault::Chunks),
    ("chunk-delay", Fault::ChunkDelay),
    ("tools", Fault::Tools),
    ("reply-bytes", Fault::ReplyBytes),
    ("keep-open", Fault::KeepOpen),
];

const BARE: [(&str, Fault); 16] = [
    ("garbage", Fault::Garbage),
    ("wrong-length=long", Fault::LengthLong),
    ("wrong-length=short", Fault::LengthShort),
    ("gzip", Fault::Gzip),
    ("split-utf8", Fault::SplitUtf8),
    ("huge-header", Fault::HugeHeader),
    ("no-usage", Fault::NoUsage),
    ("null-usage", Fault::NullUsage),
    ("bad-usage", Fault::BadUsage),
    ("no-done", Fault::NoDone),
    ("reasoning-apart", Fault::ReasoningApart),
    ("old-tools", Fault::OldTools),
    ("echo", Fault::Echo),
    ("crlf", Fault::Crlf),
    ("comments", Fault::Comments),
    ("hangup-stops", Fault::HangupStops),
];

/// Those which break an answer, other than a status.
const BREAKING: [Fault; 14] = [
    Fault::Delay,
    Fault::Stall,
    Fault::Cut,
    Fault::Reset,
    Fault::Garbage,
    Fault::LengthLong,
    Fault::LengthShort,
    Fault::Gzip,
    Fault::HugeHeader,
    Fault::NoUsage,
    Fault::NullUsage,
    Fault::BadUsage,
    Fault::ErrorEvent,
    Fault::NoDone,
];

/// The faults of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults(Vec<(Fault, u64)>);

impl Faults {
    /// Reads a segment of the path; the error tells what in it is wrong.
    pub(super) fn parse(segment: &str) -> Result<Faults, String> {
        let words = segment.split(';').filter(|word| !word.is_empty());
        words.map(parse_one).collect::<Result<_, _>>().map(Faults)
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.number(fault).is_some()
    }

    pub(super) fn number(&self, fault: Fault) -> Option<u64> {
        self.0.iter().find(|(known, _)| *known == fault).map(|(_, number)| *number)
    }

    /// What is left of them when the requests that `times` speaks of are over.
    pub(super) fn after_their_times(mut self) -> Faults {
        if self.has(Fault::Status) {
            self.0.retain(|(fault, _)| !matches!(fault, Fault::Status | Fault::RetryAfter));
        } else {
            self.0.retain(|(fault, _)| !BREAKING.contains(fault));
        }
        self
    }
}

fn parse_one(word: &str) -> Result<(Fault, u64), String> {
    if let Some((_, fault)) = BARE.iter().find(|(name, _)| *name == word) {
        return Ok((*fault, 0));
    }
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let Some((_, fault)) = WITH_NUMBER.iter().find(|(known, _)| *known == name) else {
        return Err(format!("the simulator knows no fault '{word}'"));
    };
    match value.parse() {
        Ok(number) if *fault != Fault::Status || (200..1000).contains(&number) => {
            Ok((*fault, number))
        }
        _ => Err(format!("the simulator cannot take '{value}' for the fault '{name}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_combine_and_keep_their_numbers() {
        let faults = Faults::parse("status=429;retry-after=2;crlf").expect("known faults");
        assert_eq!(faults.number(Fault::Status), Some(429));
        assert_eq!(faults.number(Fault::RetryAfter), Some(2));
        assert!(faults.has(Fault::Crlf));
        assert!(!faults.has(Fault::Gzip));
    }

    #[test]
    fn typing_errors_are_refused() {
        let wrong = [
            "statsu=429",
            "status",
            "status=",
            "status=x",
            "status=42",
            "crlf=1",
            "cut=-1",
            "wrong-length",
            "wrong-length=both",
            "fast;crlf",
            "crlf;fast",
        ];
        for segment in wrong {
            assert!(Faults::parse(segment).is_err(), "{segment}");
        }
    }

    #[test]
    fn times_ends_the_status_alone_or_else_all_breakage() {
        let faults = Faults::parse("status=500;retry-after=1;times=1;cut=2").expect("known");
        let after = faults.after_their_times();
        assert!(!after.has(Fault::Status) && !after.has(Fault::RetryAfter));
        assert_eq!(after.number(Fault::Cut), Some(2));
        let faults = Faults::parse("reset=0;times=1;prompt=5").expect("known");
        let after = faults.after_their_times();
        assert!(!after.has(Fault::Reset));
        assert_eq!(after.number(Fault::Prompt), Some(5));
    }
}
