//! Removes what belongs to the operator from vendors' messages: keys, ids of accounts, addresses.
//! Vendors write errors for the owner of the account, and a client is not the owner.
//!
//! The rules match shapes, not lists of secrets: a text with the shape of a key, of an address or
//! of an account's id is replaced by `[...]`. Ids that the client received itself, names of models
//! and paths of fields stay, since errors are of no use without them.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use super::json::patch::json_string;
use super::json::{JsonKind, JsonValue};

/// The text that replaces each removed part.
const PLACEHOLDER: &str = "[...]";
/// A run of letters, digits and `-_+*` with more bytes than this may be a key.
const RUN_BYTES_MAX: usize = 20;
/// Such a run is split at `-` and `_`. A piece counts as random from this many bytes on if it has
/// letters and digits, or from `DIGITS_MIN` on if it has digits only.
const MIXED_BYTES_MIN: usize = 10;
const DIGITS_MIN: usize = 9;
/// A secret has at least this many bytes after a known prefix.
const SECRET_BYTES_MIN: usize = 6;

/// Prefixes of keys and of account ids; case is ignored.
const SECRET_PREFIXES: [&str; 19] = [
    "sk-", "sk_", "pk-", "pk_", "rk_", "aiza", "gsk_", "ya29", "hf_", "ghp_", "akia", "org-",
    "org_", "proj_", "proj-", "acct_", "team-", "team_", "wrkspc_",
];
/// Prefixes of ids that clients received, or chose themselves.
const CLIENT_ID_PREFIXES: [&str; 14] = [
    "call_",
    "toolu_",
    "srvtoolu_",
    "msg_",
    "resp_",
    "rs_",
    "fc_",
    "ctc_",
    "item_",
    "chatcmpl-",
    "file-",
    "file_",
    "conv_",
    "req_",
];
/// Words that are followed by the name of an account.
const ACCOUNT_WORDS: [&str; 14] = [
    "project",
    "projects",
    "organization",
    "organizations",
    "organisation",
    "org",
    "account",
    "accounts",
    "team",
    "tenant",
    "workspace",
    "subscription",
    "consumer",
    "project_number",
];
/// Words that may stand between an account word and the name.
const LINKING_WORDS: [&str; 5] = ["id", "number", "named", "name", "ids"];
/// The last labels by which host names are recognised.
const TOP_LEVEL_DOMAINS: [&str; 20] = [
    "com",
    "net",
    "org",
    "io",
    "ai",
    "dev",
    "app",
    "cloud",
    "internal",
    "local",
    "localdomain",
    "lan",
    "corp",
    "intra",
    "svc",
    "arpa",
    "example",
    "invalid",
    "test",
    "co",
];

/// Returns a text without what belongs to the operator. The result is never longer than the text,
/// and redacting the result again changes nothing.
#[must_use]
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    redact_in_passes(text).0
}

/// Like [`redact`], but also returns the number of passes over the text.
fn redact_in_passes(text: &str) -> (Cow<'_, str>, usize) {
    let mut passes = 1;
    let Some(mut clean) = redact_once(text) else { return (Cow::Borrowed(text), passes) };
    loop {
        passes += 1;
        // Where a part was replaced, the words are split differently, so another secret may show.
        // This is rare, since a pass removes all that a word shows. The passes end when one finds
        // nothing.
        let Some(cleaner) = redact_once(&clean) else { return (Cow::Owned(clean), passes) };
        clean = cleaner;
    }
}

/// Redacts a text in one pass; `None` if there is nothing to remove.
fn redact_once(text: &str) -> Option<String> {
    let mut clean = String::new();
    let (mut copied, mut context) = (0, WordContext::None);
    for (start, word) in split_words(text) {
        let is_quoted = text[..start].ends_with(['\'', '"', '`']);
        let (trimmed, ends_sentence) = trim_punctuation(word);
        let is_account_name =
            context == WordContext::AfterAccountWord && (is_quoted || looks_like_name(trimmed));
        let secret_ranges = if is_secret(trimmed) || (is_account_name && !trimmed.is_empty()) {
            vec![(0, trimmed.len())]
        } else {
            account_name_ranges(trimmed)
        };
        context = context.after_word(trimmed, ends_sentence);
        for (from, to) in
            secret_ranges.into_iter().filter(|(from, to)| to - from >= PLACEHOLDER.len())
        {
            clean.push_str(&text[copied..start + from]);
            clean.push_str(PLACEHOLDER);
            copied = start + to;
            context = WordContext::None;
        }
    }
    clean.push_str(&text[copied..]);
    (copied > 0).then_some(clean)
}

/// Redacts all strings and member names in a JSON value, and writes the value on one line.
#[must_use]
pub(crate) fn redact_json(value: JsonValue<'_>) -> String {
    match value.kind() {
        JsonKind::String => json_string(&redact(&value.text().unwrap_or_default())),
        JsonKind::Array => {
            let elements: Vec<_> = value.elements().map(redact_json).collect();
            format!("[{}]", elements.join(","))
        }
        JsonKind::Object => {
            let member = |(name, value): (Cow<'_, str>, _)| {
                format!("{}:{}", json_string(&redact(&name)), redact_json(value))
            };
            let members: Vec<_> = value.members().map(member).collect();
            format!("{{{}}}", members.join(","))
        }
        JsonKind::Bool | JsonKind::Number | JsonKind::Null => {
            String::from_utf8_lossy(value.raw().trim_ascii()).into_owned()
        }
    }
}

/// Whether the preceding word announces the name of an account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WordContext {
    None,
    AfterAccountWord,
}

impl WordContext {
    fn after_word(self, word: &str, ends_sentence: bool) -> WordContext {
        let lower = word.to_ascii_lowercase();
        let is_account_word = ACCOUNT_WORDS.contains(&lower.as_str());
        let continues_account_phrase =
            self == WordContext::AfterAccountWord && LINKING_WORDS.contains(&lower.as_str());
        if (is_account_word || continues_account_phrase) && !ends_sentence {
            WordContext::AfterAccountWord
        } else {
            WordContext::None
        }
    }
}

/// Returns the words of a text, each with its byte offset. Spaces, quotes, brackets and commas
/// separate words; an address is one word.
fn split_words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_between = |c: char| {
        c.is_whitespace() || c.is_control() || "\"'`()[]{}<>,;|\\\u{201c}\u{201d}".contains(c)
    };
    text.split(is_between)
        .map(move |word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
        .filter(|(_, word)| !word.is_empty())
}

/// Returns a word without the punctuation at its end, and whether that punctuation ends a sentence,
/// which a colon does not.
fn trim_punctuation(word: &str) -> (&str, bool) {
    let trimmed = word.trim_end_matches(['.', ':', '!', '?']);
    (trimmed, word[trimmed.len()..].contains(['.', '!', '?']))
}

/// Whether a word belongs to the operator as a whole: it is an address or contains a key.
fn is_secret(word: &str) -> bool {
    is_address(word) || contains_key(word)
}

fn is_address(word: &str) -> bool {
    let is_mail = |(name, host): (&str, &str)| !name.is_empty() && host.contains('.');
    word.contains("://")
        || starts_with_ignore_case(word, "www.")
        || starts_with_ignore_case(word, "arn:")
        || word.split_once('@').is_some_and(is_mail)
        || begins_with_host(word)
}

/// Whether a word begins with a host name or an IP address; a port and a path may follow.
fn begins_with_host(word: &str) -> bool {
    let bare = word.trim_start_matches('/');
    let host = bare.split(['/', '?']).next().unwrap_or_default();
    let host = host.rsplit_once(':').filter(|(_, port)| is_number(port)).map_or(host, |(h, _)| h);
    let is_numeric = host.parse::<IpAddr>().is_ok() || bare.parse::<SocketAddr>().is_ok();
    is_numeric || bare.parse::<IpAddr>().is_ok() || is_host(host)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_host(host: &str) -> bool {
    let Some((rest, last)) = host.rsplit_once('.') else { return false };
    let is_label = |label: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        !label.is_empty() && label.bytes().all(fits)
    };
    TOP_LEVEL_DOMAINS.contains(&last.to_ascii_lowercase().as_str()) && rest.split('.').all(is_label)
}

fn starts_with_ignore_case(word: &str, start: &str) -> bool {
    word.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

/// Whether a word contains a run with the shape of a key or of an account's id.
fn contains_key(word: &str) -> bool {
    let is_of_run = |c: char| c.is_ascii_alphanumeric() || "_-+*".contains(c);
    let mut runs = word.split(|c| !is_of_run(c));
    word.contains("***") || runs.any(|run| has_secret_prefix(run) || is_uuid(run) || is_random(run))
}

fn has_secret_prefix(run: &str) -> bool {
    let rest = SECRET_PREFIXES
        .iter()
        .find(|start| starts_with_ignore_case(run, start))
        .map(|start| &run[start.len()..]);
    rest.is_some_and(|rest| {
        rest.len() >= SECRET_BYTES_MIN && rest.bytes().any(|b| b.is_ascii_digit() || b == b'*')
    })
}

fn is_uuid(run: &str) -> bool {
    let lengths = run.split('-').map(str::len);
    let is_hex = run.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_hex && lengths.eq([8, 4, 4, 4, 12])
}

fn is_random(run: &str) -> bool {
    let is_client_id = CLIENT_ID_PREFIXES.iter().any(|start| run.starts_with(start));
    let is_piece = |piece: &str| {
        let digits = piece.bytes().filter(u8::is_ascii_digit).count();
        let is_mixed = digits > 0 && digits < piece.len() && piece.len() >= MIXED_BYTES_MIN;
        is_mixed || (digits == piece.len() && digits >= DIGITS_MIN)
    };
    !is_client_id && run.len() > RUN_BYTES_MAX && run.split(['-', '_']).any(is_piece)
}

/// Whether a word that follows an account word may be a name.
fn looks_like_name(word: &str) -> bool {
    word.bytes().any(|b| b.is_ascii_digit() || b == b'-' || b == b'_')
}

/// Returns the byte ranges to remove from a path such as `projects/NAME/places`: each account name
/// and, if a host name or an IP address follows one, everything after that name.
fn account_name_ranges(word: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    let mut is_owner = false;
    for part in word.split(['/', ':', '=']) {
        let end = at + part.len();
        if is_owner && part.len() >= PLACEHOLDER.len() {
            ranges.push((at, end));
            // A part that is removed does not announce another name.
            is_owner = false;
            // The check looks only up to the next slash, so that a word is read once in all.
            if word[end..].starts_with('/') && begins_with_host(&word[end..]) {
                ranges.push((end, word.len()));
                break;
            }
        } else {
            is_owner = ACCOUNT_WORDS.iter().any(|owner| part.eq_ignore_ascii_case(owner));
        }
        at = end + 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("Incorrect API key provided: vk-ab***********yz.", "Incorrect API key provided: [...].")]
    #[case("Incorrect API key provided: sk-proj-Ab3dEf6hIj.", "Incorrect API key provided: [...].")]
    #[case("bad header: Bearer sk-0123abcd", "bad header: Bearer [...]")]
    #[case("key=AIzaSyA1b2C3d4E5f6G7h8 is bad", "[...] is bad")]
    #[case("x 'abc-0123456789abcdefghij' y", "x '[...]' y")]
    #[case(
        "Rate limit reached for lmb-5.5 in organization org-AbC123xyz on tokens per min.",
        "Rate limit reached for lmb-5.5 in organization [...] on tokens per min."
    )]
    #[case("in organization org-sim-account: 10000 RPM.", "in organization [...]: 10000 RPM.")]
    #[case("Project `proj_Zx9Yw8Vu7` does not have access", "Project `[...]` does not have access")]
    #[case(
        "API has not been used in project 123456789012 before",
        "API has not been used in project [...] before"
    )]
    #[case(
        "Quota exceeded for consumer 'project_number:123456789012'.",
        "Quota exceeded for consumer '[...]'."
    )]
    #[case(
        "Publisher projects/acme/locations/global/x",
        "Publisher projects/acme/locations/global/x"
    )]
    #[case("Publisher projects/acmecorp/locations/x", "Publisher projects/[...]/locations/x")]
    #[case("at org/acmecorp/team/reds-1/x", "at org/[...]/team/[...]/x")]
    #[case("org/acmecorp/db01.prod.internal/team/x, or", "org/[...][...], or")]
    #[case("team 9f1c2b3a-0000-4000-8000-0123456789ab: no", "team [...]: no")]
    #[case(
        "upstream connect error: 10.12.0.7:8443 refused",
        "upstream connect error: [...] refused"
    )]
    #[case("dial tcp [2001:db8::7]:443: timeout", "dial tcp [[...]]:443: timeout")]
    #[case("no route to db01.prod.internal (code 7)", "no route to [...] (code 7)")]
    #[case("See https://vendor.test/account/limits.", "See [...].")]
    #[case("contact ops+llm@acme.example, please", "contact [...], please")]
    #[case("role arn:aws:iam::123456789012:role/llm denied", "role [...] denied")]
    #[case("You can find it at platform.vendor.com/account/keys.", "You can find it at [...].")]
    fn what_is_the_operators_went_to_clients(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(redact(text), expected);
    }

    #[rstest]
    #[case("Invalid 'messages[0].content[1].type': expected one of 'text', 'image_url', got 'x'.")]
    #[case("max_tokens: 128001 > 128000, the most output tokens for lma-3-5-large-20241022")]
    #[case("This model's maximum context length is 128000 tokens; yours has 130123.")]
    #[case("messages.3: `tool_use` ids without `tool_result`: toolu_01A09q90qw90lq917835lq9.")]
    #[case("Previous response with id 'resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b4' not found.")]
    #[case("No tool output found for function call call_8dP0ZtXq3Y1uJ2b7nC5kLmQw.")]
    #[case("The model or path does not exist or you do not have access to it.")]
    #[case("text-embedding-3-large takes 8192 tokens; vendor/model-3.1-70b-instruct-2026-01-01")]
    #[case("Invalid size 1024x1536; use 16:9 at 12:30:45, or image/png, before 2026-12-01.")]
    #[case("Your account is not active. lmb-5.5 needs one; your organization must be verified.")]
    #[case("9223372036854775807 is greater than the maximum of 2147483647")]
    #[case("expected a sk-learn like object, an org-wide rule or a team-based one")]
    #[case("Unterminated string at line 1 column 33 (char 32) of prompt.txt, e.g. a::b")]
    #[case("überlang – 東京 “quoted” …")]
    #[case("bad head: [redacted]")]
    fn ordinary_words_were_taken_for_secrets(#[case] text: &str) {
        assert_eq!(redact(text), text);
        assert!(matches!(redact(text), Cow::Borrowed(_)));
    }

    #[rstest]
    #[case::paths("org/aaaaa/", "org/[...]/")]
    #[case::pairs("Team:aaaaa=", "Team:[...]=")]
    #[case::words("project 'aaaaa' ", "project '[...]' ")]
    fn each_of_many_owners_cost_a_pass_over_the_text(#[case] piece: &str, #[case] clean: &str) {
        let times = 4_000 / piece.len();
        let text = piece.repeat(times);
        let (redacted, passes) = redact_in_passes(&text);
        assert_eq!(redacted, clean.repeat(times));
        assert!(passes <= 3, "{passes} passes");
    }

    #[test]
    fn json_keeps_its_shape() {
        let json =
            r#"{ "a": [1, true, null, "key sk-0123abcd"], "sk-0123abcd" : {"\u0062": "x\ny"} }"#;
        let clean = redact_json(JsonValue::from_validated(json.as_bytes()));
        assert_eq!(clean, r#"{"a":[1,true,null,"key [...]"],"[...]":{"b":"x\ny"}}"#);
    }

    proptest! {
        #[test]
        fn it_never_grows_and_twice_is_as_good_as_once(
            text in concat!(
                "((sk-|org-|project |projects/|account:|[a-z0-9]{1,30}|10\\.0\\.0\\.[0-9]|a@b\\.c|",
                "://|www\\.|\\PC|[ .,:;'/=*\\[\\]-]){0,12}){0,4}",
            )
        ) {
            let (once, passes) = redact_in_passes(&text);
            let once = once.into_owned();
            prop_assert!(once.len() <= text.len() && passes <= 3, "{} in {}", once, passes);
            prop_assert_eq!(redact(&once), once.as_str());
        }

        #[test]
        fn a_key_goes_wherever_it_stands(
            key in "sk-[A-Za-z0-9]{5}[0-9][A-Za-z0-9_-]{0,60}",
            before in "(|error: |\\(|'|key=|/v1/|x\\.)",
            after in "(|\\.|\\)|'|, see there|/x)",
        ) {
            let text = format!("{before}{key}{after}");
            prop_assert!(!redact(&text).contains(&key), "{}", text);
        }

        #[test]
        fn words_of_letters_are_never_touched(text in "[a-zA-Z ,!?]{0,200}") {
            prop_assert_eq!(redact(&text), text.as_str());
        }
    }
}
