//! How a video ends, which is known from the beginning.

use super::super::faults::{Fault, Faults};
use super::super::refusal::Refusal;

/// How long a video takes, unless told otherwise.
const VIDEO_MS: u64 = 400;

/// How a video ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// As the last, but there is no file at its address.
    Lost,
    /// Made, but kept from the customer, who pays all the same.
    Withheld,
    /// With a code and a message.
    Failed(&'static str, &'static str),
    /// Failed without a word.
    Silent,
    Expired,
    /// As if it had never been.
    Gone,
    Never,
}

impl End {
    /// Whether the vendor puts it on the bill.
    pub(super) fn is_billed(self) -> bool {
        matches!(self, End::Done | End::Lost | End::Withheld)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            End::Done => "done",
            End::Lost => "lost",
            End::Withheld => "withheld",
            End::Failed(..) | End::Silent => "failed",
            End::Expired => "expired",
            End::Gone => "gone",
            End::Never => "never",
        }
    }
}

/// What becomes of a video, and in how many milliseconds; or why it is not even begun.
pub(super) fn of(faults: &Faults, prompt: &str) -> Result<(End, u64), Refusal> {
    let says = |word: &str| prompt.contains(word);
    let takes = slow(prompt).or(faults.number(Fault::VideoMs)).unwrap_or(VIDEO_MS);
    let said = WORDS.iter().find(|(word, _)| says(word)).map(|(_, end)| *end);
    let moderated = match faults.word(Fault::ModeratedWhen) {
        None => faults.has(Fault::Moderated).then_some(End::Withheld),
        Some("late") => Some(LATE),
        Some("denied") => Some(DENIED),
        Some("prompt") if said.is_none() => return Err(blocked()),
        Some(_) => Some(End::Withheld),
    };
    if says("[blocked]") {
        return Err(blocked());
    }
    let fails = faults.word(Fault::Fails).map(failed);
    let never = faults.has(Fault::Never).then_some(End::Never);
    Ok((said.or(moderated).or(fails).or(never).unwrap_or(End::Done), takes))
}

const BROKEN: End = End::Failed("internal_error", "An internal error occurred.");
const LATE: End =
    End::Failed("invalid_argument", "Generated video rejected by content moderation.");
const DENIED: End = End::Failed("permission_denied", "The prompt violates the usage policy.");

/// The words of a prompt which decide.
const WORDS: [(&str, End); 8] = [
    ("[withheld]", End::Withheld),
    ("[late]", LATE),
    ("[denied]", DENIED),
    ("[fails]", BROKEN),
    ("[expires]", End::Expired),
    ("[gone]", End::Gone),
    ("[never]", End::Never),
    ("[lost-file]", End::Lost),
];

fn blocked() -> Refusal {
    Refusal::new(400, "Prompt rejected by content moderation.")
}

/// The end that a word of `fails` asks for.
fn failed(word: &str) -> End {
    match word {
        "expired" => End::Expired,
        "gone" => End::Gone,
        "silent" => End::Silent,
        "service_unavailable" => {
            End::Failed("service_unavailable", "The service is currently unavailable.")
        }
        "failed_precondition" => {
            End::Failed("failed_precondition", "The image could not be loaded.")
        }
        "invalid_argument" => End::Failed("invalid_argument", "The image is too small."),
        "permission_denied" => {
            End::Failed("permission_denied", "team sim-account may not use this model.")
        }
        _ => BROKEN,
    }
}

/// The number of `[slow 3000]`.
fn slow(prompt: &str) -> Option<u64> {
    let (_, rest) = prompt.split_once("[slow ")?;
    rest.split_once(']')?.0.parse().ok()
}
