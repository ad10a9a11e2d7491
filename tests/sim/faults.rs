//! Faults and wishes that a request asks for in its own address.

/// One thing that a simulated vendor can be told to do.
///
/// They stand in one segment of the path, divided by `;`, and combine. N, S, MS and K are
/// whole numbers. A *chunk* is one event of a stream that carries data, the first (the role)
/// and the last (the usage) included, `[DONE]` and comments not; "after N chunks" of a shorter
/// stream is before its `[DONE]`. Of `vendor_a`'s streams it is any event but `ping` and
/// `message_stop`, which stands for `[DONE]`: where nothing is thought, the start of the message,
/// that of the block, a word each, and the ends of both. Of a response it is any event but the
/// last one, which tells how it ended and stands for `[DONE]`; speech comes in chunks of 1024
/// bytes, the file of a video in chunks of 16 KiB, and an error-event only cuts them. *Billed* says
/// what [`Seen::billed`] holds, where it is not the whole reply.
///
/// A video takes three requests, which share the faults of one address. A word in front aims a
/// fault at one of them, and wins over the same one without: `submit.` at the POST, `poll.` at
/// questions for the job, `file.` at the file, as in `poll.status=503;poll.times=2;file.cut=3`.
/// As the id of the job is a part of these addresses, `poll.times` and `file.times` count for each
/// job apart. A POST that is refused or has a status makes no job; one that stalls, is cut or reset
/// (with N=0 too), or whose answer is garbage or too late, does, and is billed.
///
/// ```text
/// status=N            answers N with the vendor's error body, 200 too; billed: nothing
/// bad-key             answers as if the vendor did not know the key: vendor_c and vendor_d with
///                     400, each in a shape of its own, the others with 401; billed: nothing
/// retry-after=S       adds that header to the status
/// times=K             status only for the first K requests to this very address; without
///                     status, the faults which break an answer only for them
/// delay=MS            waits before the answer
/// held=N              streams: waits after N chunks, whole: before the answer, until whoever runs
///                     the simulator lets go, 100 s at most
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
/// page                200 and a page for people
/// empty               200 and nothing
/// gzip                the answer compressed, though nobody asked; as with wrong-length, a
///                     stream is one body then, with the faults of whole replies
/// split-utf8          400 bytes one by one, the rest by threes, each in a write (of streams:
///                     an HTTP chunk) of its own; the text is full of long characters
/// huge-header         a header of 512 KiB
/// no-usage            no usage anywhere
/// null-usage          usage: null, and no usage chunk
/// bad-usage           usage of negative, broken and overflowing numbers
/// lean-usage          vendor_a: the last usage of a stream tells the output only; what it said
///                     of the input at the start is null
/// error-event=N       after N chunks the vendor's error as an event, then the end without
///                     [DONE], then a close; billed: N chunks; streams only
/// no-done             the stream ends well, but without [DONE]
/// prompt=N            the prompt tokens to report, cached ones included; otherwise bytes of
///                     the request / 4 + 1
/// cache-read=N        vendor_a: so many of them came out of the cache
/// cache-write=N       vendor_a: so many of them went into the cache; without these two, what
///                     cache_control marks is written first and read from then on
/// completion=N        the completion_tokens to report, of all choices; otherwise the words
///                     of the text (8 for a tool call) times n, and the reasoning where the
///                     vendor counts it inside
/// reasoning=N         the reasoning tokens to report; otherwise 0, or of a vendor_a model that
///                     thinks the words of its thought; vendor_a: 0 is no thought at all
/// reasoning-apart     reasoning outside completion_tokens, whatever the vendor's habit
/// chunks=N            content chunks of a choice; otherwise one per word; the usual text
///                     then has N words
/// chunk-delay=MS      waits between chunks
/// tools=N             N parallel tool calls, if the request has tools
/// text-too            vendor_a: the text before the tool calls, too
/// old-tools           tool calls of streams without index, with an empty id and the
///                     finish_reason stop, from vendor_c and vendor_d
/// reply-bytes=N       the length of the text
/// echo                the text is {"bytes":…,"fnv":"…"}: the length of the request's body
///                     and its FNV-1a (64 bit) in 16 hex digits
/// keep-open=MS        waits between [DONE] and the end of the stream
/// crlf                lines of events end with CR LF
/// comments            : keep-alive between the events
/// refusal             vendor_a: refused, with an explanation and without content;
///                     billed: one token of output
/// refusal=N           the same after N words; billed: these too
/// stop=REASON         vendor_a: that stop_reason, whatever happened; one of its own or
///                     something_new
/// double-start        vendor_a: message_start twice
/// redacted            vendor_a: a block of redacted thought before the text
/// omitted             vendor_a: thought without its text, only signed
/// odd-events          vendor_a: events and deltas of kinds that nobody knows, and a
///                     message_delta before the last; streams only
/// web-json            vendor_a: the halves of the text have a search of the vendor's own
///                     between them, whose blocks stream input_json_delta; the usage at the
///                     start knows a third of the input only (so it is without this fault where
///                     the request lets the vendor fetch pages)
/// summary=N           vendor_a: where the request asks for it (an edit compact_…), a summary of N
///                     tokens comes before the answer, in a block of its own. It is a pass over the
///                     whole prompt that stands in usage.iterations only; billed: this pass too
/// hangup-stops        stops generating when the client hangs up; billed: until then;
///                     streams only
/// failed              responses: it ends as failed, with an error and without usage;
///                     billed: nothing
/// incomplete          responses: it ends as incomplete, for its content_filter
/// shell-calls=N       responses: N calls of local_shell instead of other calls, if the request
///                     offers that tool and does not end in the output of a call
/// patch-calls=N       the same of apply_patch; both combine
/// searches=N          responses: so many searches, if the request allows any; otherwise one
/// image-bytes=N       images: each a PNG of N bytes, 81 at least; otherwise of 69
/// ticks=N             images and videos of vendor_d: the cost_in_usd_ticks to bill and to report;
///                     poll.ticks=N: only to report
/// moderated           images, videos: vendor_d's come with respect_moderation false and empty,
///                     and are billed; vendor_b refuses the request, as its rules demand
/// moderated=WHEN      videos: prompt: 400 to the POST; output: as without; late: failed with
///                     invalid_argument in the end; denied: failed with permission_denied; both
///                     with a message that speaks of moderation or policy; billed: output only
/// no-image            images: the entries of data have no image in them
/// with-usage          embeddings of vendor_c: usage, which is not there otherwise
/// video-ms=MS         videos: how long one takes; otherwise 400
/// image-ticks=N       videos: what a reference image adds to the price; otherwise nothing
/// never               videos: pending for ever; billed: nothing
/// fails=HOW           videos: failed in the end, with one of the codes internal_error,
///                     service_unavailable, failed_precondition, invalid_argument and
///                     permission_denied, or silent, which is without an error; or expired, which
///                     is a status of its own; or gone: 404 in the end; billed: nothing
/// url=KIND            videos: the file is said to be elsewhere. other-host: on localhost, or on
///                     127.0.0.1 if it was localhost before, where it is indeed; metadata: at the
///                     address where clouds keep secrets; scheme: file:///; relative: without a
///                     host; empty; none: no url at all
/// url-port=N          videos: the file is said to be on that port of this host
/// redirect            videos: the file's address answers 302, to where the file is indeed
/// fast                a static answer for benchmarks, not recorded; stands alone
/// ```
///
/// [`Seen::billed`]: super::Seen::billed
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Status,
    BadKey,
    RetryAfter,
    Times,
    Delay,
    Held,
    Stall,
    Cut,
    Reset,
    Garbage,
    Page,
    Empty,
    LengthLong,
    LengthShort,
    Gzip,
    SplitUtf8,
    HugeHeader,
    NoUsage,
    NullUsage,
    BadUsage,
    LeanUsage,
    ErrorEvent,
    NoDone,
    Prompt,
    CacheRead,
    CacheWrite,
    Completion,
    Reasoning,
    ReasoningApart,
    Chunks,
    ChunkDelay,
    Tools,
    TextToo,
    OldTools,
    ReplyBytes,
    Echo,
    KeepOpen,
    Crlf,
    Comments,
    Refusal,
    Stop,
    DoubleStart,
    Redacted,
    Omitted,
    OddEvents,
    WebJson,
    Summary,
    HangupStops,
    Failed,
    Incomplete,
    ShellCalls,
    PatchCalls,
    Searches,
    ImageBytes,
    Ticks,
    Moderated,
    NoImage,
    WithUsage,
    ModeratedWhen,
    VideoMs,
    ImageTicks,
    Never,
    Fails,
    Url,
    UrlPort,
    Redirect,
}

const WITH_NUMBER: [(&str, Fault); 29] = [
    ("status", Fault::Status),
    ("retry-after", Fault::RetryAfter),
    ("times", Fault::Times),
    ("delay", Fault::Delay),
    ("held", Fault::Held),
    ("stall", Fault::Stall),
    ("cut", Fault::Cut),
    ("reset", Fault::Reset),
    ("error-event", Fault::ErrorEvent),
    ("prompt", Fault::Prompt),
    ("cache-read", Fault::CacheRead),
    ("cache-write", Fault::CacheWrite),
    ("refusal", Fault::Refusal),
    ("completion", Fault::Completion),
    ("reasoning", Fault::Reasoning),
    ("chunks", Fault::Chunks),
    ("chunk-delay", Fault::ChunkDelay),
    ("tools", Fault::Tools),
    ("reply-bytes", Fault::ReplyBytes),
    ("keep-open", Fault::KeepOpen),
    ("summary", Fault::Summary),
    ("shell-calls", Fault::ShellCalls),
    ("patch-calls", Fault::PatchCalls),
    ("searches", Fault::Searches),
    ("image-bytes", Fault::ImageBytes),
    ("ticks", Fault::Ticks),
    ("video-ms", Fault::VideoMs),
    ("image-ticks", Fault::ImageTicks),
    ("url-port", Fault::UrlPort),
];

const BARE: [(&str, Fault); 34] = [
    ("bad-key", Fault::BadKey),
    ("garbage", Fault::Garbage),
    ("page", Fault::Page),
    ("empty", Fault::Empty),
    ("wrong-length=long", Fault::LengthLong),
    ("wrong-length=short", Fault::LengthShort),
    ("gzip", Fault::Gzip),
    ("split-utf8", Fault::SplitUtf8),
    ("huge-header", Fault::HugeHeader),
    ("no-usage", Fault::NoUsage),
    ("null-usage", Fault::NullUsage),
    ("bad-usage", Fault::BadUsage),
    ("lean-usage", Fault::LeanUsage),
    ("no-done", Fault::NoDone),
    ("reasoning-apart", Fault::ReasoningApart),
    ("text-too", Fault::TextToo),
    ("old-tools", Fault::OldTools),
    ("echo", Fault::Echo),
    ("crlf", Fault::Crlf),
    ("comments", Fault::Comments),
    ("refusal", Fault::Refusal),
    ("double-start", Fault::DoubleStart),
    ("redacted", Fault::Redacted),
    ("omitted", Fault::Omitted),
    ("odd-events", Fault::OddEvents),
    ("web-json", Fault::WebJson),
    ("hangup-stops", Fault::HangupStops),
    ("failed", Fault::Failed),
    ("incomplete", Fault::Incomplete),
    ("moderated", Fault::Moderated),
    ("no-image", Fault::NoImage),
    ("with-usage", Fault::WithUsage),
    ("never", Fault::Never),
    ("redirect", Fault::Redirect),
];

/// Those which take a word, and the words they know; as a fault each holds the place of one.
const WITH_WORD: [(&str, Fault, &[&str]); 4] = [
    ("stop", Fault::Stop, &STOP_REASONS),
    ("moderated", Fault::ModeratedWhen, &["prompt", "output", "late", "denied"]),
    ("fails", Fault::Fails, &FAILURES),
    ("url", Fault::Url, &["other-host", "metadata", "scheme", "relative", "empty", "none"]),
];

const FAILURES: [&str; 8] = [
    "internal_error",
    "service_unavailable",
    "failed_precondition",
    "invalid_argument",
    "permission_denied",
    "silent",
    "expired",
    "gone",
];

const STOP_REASONS: [&str; 8] = [
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
    "something_new",
];

/// What may stand in front of a fault, to aim it.
const AIMS: [&str; 3] = ["submit", "poll", "file"];

/// Those which break an answer, other than a status.
const BREAKING: [Fault; 30] = [
    Fault::BadKey,
    Fault::Delay,
    Fault::Held,
    Fault::Stall,
    Fault::Cut,
    Fault::Reset,
    Fault::Garbage,
    Fault::Page,
    Fault::Empty,
    Fault::LengthLong,
    Fault::LengthShort,
    Fault::Gzip,
    Fault::HugeHeader,
    Fault::NoUsage,
    Fault::NullUsage,
    Fault::BadUsage,
    Fault::ErrorEvent,
    Fault::NoDone,
    Fault::Refusal,
    Fault::Stop,
    Fault::Failed,
    Fault::Incomplete,
    Fault::Moderated,
    Fault::NoImage,
    Fault::ModeratedWhen,
    Fault::Never,
    Fault::Fails,
    Fault::Url,
    Fault::UrlPort,
    Fault::Redirect,
];

/// The faults of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults(Vec<(Fault, u64)>);

impl Faults {
    /// Reads a segment of the path; the error tells what in it is wrong.
    pub(super) fn parse(segment: &str) -> Result<Faults, String> {
        Faults::aimed(segment, None)
    }

    /// The same for an endpoint that faults can be aimed at: those are left out which are aimed at
    /// another.
    pub(super) fn aimed(segment: &str, aim: Option<&str>) -> Result<Faults, String> {
        let (mut aimed, mut general) = (Vec::new(), Vec::new());
        for word in segment.split(';').filter(|word| !word.is_empty()) {
            match word.split_once('.') {
                Some((place, word)) if AIMS.contains(&place) => {
                    let fault = parse_one(word)?;
                    if aim == Some(place) {
                        aimed.push(fault);
                    }
                }
                _ => general.push(parse_one(word)?),
            }
        }
        aimed.append(&mut general);
        Ok(Faults(aimed))
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.number(fault).is_some()
    }

    pub(super) fn number(&self, fault: Fault) -> Option<u64> {
        self.0.iter().find(|(known, _)| *known == fault).map(|(_, number)| *number)
    }

    /// The reason to stop that is asked for.
    pub(super) fn stop_reason(&self) -> Option<&'static str> {
        self.word(Fault::Stop)
    }

    /// The word of a fault that takes one.
    pub(super) fn word(&self, fault: Fault) -> Option<&'static str> {
        let place = usize::try_from(self.number(fault)?).expect("a place in a short list");
        let (_, _, words) = WITH_WORD.iter().find(|(_, known, _)| *known == fault)?;
        Some(words[place])
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
    let wrong = || format!("the simulator cannot take '{value}' for the fault '{name}'");
    if let Some((_, fault, words)) = WITH_WORD.iter().find(|(known, ..)| *known == name) {
        let place = (0..).zip(*words).find(|(_, known)| **known == value);
        return place.map(|(place, _)| (*fault, place)).ok_or_else(wrong);
    }
    let Some((_, fault)) = WITH_NUMBER.iter().find(|(known, _)| *known == name) else {
        return Err(format!("the simulator knows no fault '{word}'"));
    };
    match value.parse() {
        Ok(number) if *fault != Fault::Status || (200..1000).contains(&number) => {
            Ok((*fault, number))
        }
        _ => Err(wrong()),
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
        let faults = Faults::parse("refusal=3;stop=pause_turn").expect("known faults");
        assert_eq!(faults.number(Fault::Refusal), Some(3));
        assert_eq!(faults.stop_reason(), Some("pause_turn"));
        let bare = Faults::parse("refusal").expect("a known fault");
        assert_eq!((bare.number(Fault::Refusal), bare.stop_reason()), (Some(0), None));
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
            "stop",
            "stop=boredom",
            "refusal=",
            "moderated=early",
            "fails",
            "fails=often",
            "url=",
            "poll.statsu=429",
            "post.status=429",
            "poll.",
            "submit.poll.never",
            "fast;crlf",
            "crlf;fast",
        ];
        for segment in wrong {
            assert!(Faults::parse(segment).is_err(), "{segment}");
        }
    }

    #[test]
    fn faults_are_aimed_at_one_request_of_a_video() {
        let segment = "status=500;poll.status=404;poll.times=2;file.cut=3;fails=gone;moderated";
        let of = |aim| Faults::aimed(segment, aim).expect("known faults");
        for (aim, status, times, cut) in [
            (None, 500, None, None),
            (Some("submit"), 500, None, None),
            (Some("poll"), 404, Some(2), None),
            (Some("file"), 500, None, Some(3)),
        ] {
            let faults = of(aim);
            assert_eq!(faults.number(Fault::Status), Some(status), "{aim:?}");
            assert_eq!(faults.number(Fault::Times), times, "{aim:?}");
            assert_eq!(faults.number(Fault::Cut), cut, "{aim:?}");
            assert_eq!(faults.word(Fault::Fails), Some("gone"), "{aim:?}");
            assert!(faults.has(Fault::Moderated) && !faults.has(Fault::ModeratedWhen));
        }
        let late = Faults::parse("moderated=late;url=other-host").expect("known faults");
        assert_eq!(late.word(Fault::ModeratedWhen), Some("late"));
        assert_eq!(late.word(Fault::Url), Some("other-host"));
        assert!(!late.has(Fault::Moderated));
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
