//! Counts the tokens of the vocabulary `o200k` exactly, in a time that grows with the length of the
//! text only.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use once_cell::sync::Lazy;
use tiktoken_rs::CoreBPE;

/// The vocabulary. It is unpacked at its first use, which takes some hundred milliseconds, and then
/// stays in memory with about 50 MB.
static VOCABULARY: Lazy<Option<CoreBPE>> = Lazy::new(|| tiktoken_rs::o200k_base().ok());

/// The text is counted in pieces of at most this many bytes, so that a word without end, which
/// takes longer for each byte, and long white space cost no more than other text.
const PIECE_BYTES_MAX: usize = 4_096;

/// A text that is cut inside of a word may have fewer tokens than it has as a whole. This many are
/// added for such a cut; more than 5 were not found.
const CUT_TOKENS: u64 = 16;
/// Returns the tokens of a text, or a little more if it has words of more than 4 KiB; `None` if the
/// vocabulary cannot be read.
#[must_use]
pub(super) fn count_o200k(text: &str) -> Option<u64> {
    let vocabulary = VOCABULARY.as_ref()?;
    let (mut rest, mut tokens) = (text, 0u64);
    while !rest.is_empty() {
        let (end, is_clean) = find_cut(rest);
        let (piece, after) = rest.split_at(end);
        let counted = vocabulary.count_ordinary(piece) as u64;
        tokens =
            tokens.saturating_add(counted).saturating_add(if is_clean { 0 } else { CUT_TOKENS });
        rest = after;
    }
    Some(tokens)
}

/// Returns where to cut a text, and whether the cut is between two words, where it does not change
/// the tokens.
fn find_cut(text: &str) -> (usize, bool) {
    if text.len() <= PIECE_BYTES_MAX {
        return (text.len(), true);
    }
    let bytes = text.as_bytes();
    if let Some(end) = (1..PIECE_BYTES_MAX).rev().find(|at| is_between_words(bytes, *at)) {
        return (end, true);
    }
    let end = (1..=PIECE_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
    (end.unwrap_or(text.len()), false)
}

/// Whether a word ends before `at` in any text: there stands a space after a visible ASCII
/// character, or a Chinese comma or full stop after a Chinese character.
fn is_between_words(bytes: &[u8], at: usize) -> bool {
    let (before, after) = bytes.split_at(at);
    let is_stop = after.starts_with("，".as_bytes()) || after.starts_with("。".as_bytes());
    match before {
        [.., 0x21..=0x7E] => after.first() == Some(&b' '),
        // U+5000 to U+9FFF.
        [.., 0xE5..=0xE9, 0x80..=0xBF, 0x80..=0xBF] => is_stop,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count_whole(text: &str) -> u64 {
        VOCABULARY.as_ref().expect("the vocabulary").count_ordinary(text) as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_text_of_words_has_the_same_tokens_in_pieces(
            words in prop::collection::vec("[a-zA-Z0-9,.'é一-丰]{1,12}", 900..1_500),
            between in prop_oneof![Just(" "), Just("\n "), Just(" \n"), Just("  ")],
        ) {
            let text = words.join(" ") + between + &words.join(between);
            let (whole, pieces) = (count_whole(&text), count_o200k(&text).expect("the vocabulary"));
            let cuts = text.len() as u64 / 1_024;
            prop_assert!(pieces >= whole && pieces <= whole + cuts * CUT_TOKENS);
            let spaced = words.join(" ");
            prop_assert_eq!(count_o200k(&spaced), Some(count_whole(&spaced)));
        }

        #[test]
        fn a_word_without_end_is_not_counted_short(
            bricks in prop::collection::vec(prop_oneof![
                "[a-z]{1,40}", "[A-Z]{1,40}", "a{1,90}", "[\u{4e00}-\u{9fff}]{1,30}",
                "[=#!-]{1,60}", "[\u{400}-\u{450}]{1,40}", " {1,80}", "\u{1f600}{1,9}",
            ], 300..900),
        ) {
            let text = bricks.concat();
            let whole = count_whole(&text);
            let pieces = count_o200k(&text).expect("the vocabulary");
            let cuts = text.len() as u64 / (PIECE_BYTES_MAX as u64 / 2) + 1;
            prop_assert!(pieces >= whole, "{} < {}", pieces, whole);
            prop_assert!(pieces <= whole + cuts * (CUT_TOKENS + 8));
        }
    }
}
