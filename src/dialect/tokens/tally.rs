//! Counts a text by classes of characters, so that its tokens can be estimated without the
//! vocabulary of a tokenizer.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::input::extrapolate;

/// What is counted. A tokenizer splits a text into words, groups of digits, punctuation and white
/// space before it looks at its vocabulary, so these are counted, not bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dialect) enum TextUnit {
    /// The beginning of a word after a space, which most vocabularies contain with its space.
    SpacedWord,
    /// The beginning of a word after anything else; a capital after a small letter begins one.
    Word,
    /// A letter at the positions 6 to 9 of a word.
    LongLetter,
    /// A letter at the positions 10 to 16 of a word.
    LongerLetter,
    /// A letter from position 17 of a word on, which is no word of any language.
    LongestLetter,
    /// A capital after a capital.
    Capital,
    /// The first of up to three digits.
    DigitGroup,
    /// Any digit.
    Digit,
    /// The second space of a run; the first one belongs to the word after it.
    SpaceRun,
    /// The spaces of a run from the third on.
    MoreSpace,
    /// The first line feed of a run.
    LineFeed,
    /// Another line feed of a run.
    MoreLineFeed,
    /// The first mark of a run of punctuation.
    Mark,
    /// A mark that differs from the mark before it.
    MoreMark,
    /// A mark that repeats the mark before it.
    RepeatedMark,
    /// A control character.
    Control,
    /// A letter with an accent, and other characters of the Latin script that are not ASCII.
    AccentedLetter,
    /// A character of the Greek or Cyrillic script.
    GreekOrCyrillic,
    /// Another character of two bytes, such as Hebrew and Arabic.
    OtherTwoBytes,
    /// A character of the scripts of India and its neighbours, and other scripts of three bytes.
    OtherScript,
    /// A syllable of Japanese kana.
    Kana,
    /// A Chinese character.
    Han,
    /// A Korean syllable.
    Hangul,
    /// Punctuation, arrows and other symbols of three bytes.
    Symbol,
    /// A character of four bytes, such as an emoji.
    FourBytes,
}

/// How many units there are.
pub(in crate::dialect) const UNITS: usize = TextUnit::FourBytes as usize + 1;

/// The first positions of a [`TextUnit::LongLetter`], of a [`TextUnit::LongerLetter`] and of a
/// [`TextUnit::LongestLetter`].
const LONG_FROM: u32 = 6;
const LONGER_FROM: u32 = 10;
const LONGEST_FROM: u32 = 17;

/// The class of a character, as far as it decides what the next character begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CharClass {
    /// Nothing has come before, or what came before belongs to another text.
    #[default]
    Start,
    Small,
    Capital,
    Digit,
    Space,
    LineFeed,
    Mark,
    Control,
    /// Any character that is not ASCII, letters with accents excepted.
    Wide,
}

const ASCII_CLASSES: [CharClass; 128] = {
    let mut classes = [CharClass::Mark; 128];
    let mut byte = 0u8;
    while byte < 128 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' => CharClass::Small,
            b'A'..=b'Z' => CharClass::Capital,
            b'0'..=b'9' => CharClass::Digit,
            b' ' | b'\t' => CharClass::Space,
            b'\n' | b'\r' => CharClass::LineFeed,
            0..0x20 | 0x7F => CharClass::Control,
            _ => CharClass::Mark,
        };
        byte += 1;
    }
    classes
};

/// The units of a text. The text is added in pieces; the count does not depend on where it was cut,
/// and never falls when text is added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::dialect) struct TextTally {
    counts: [u64; UNITS],
    bytes: u64,
    /// The class of the last character, and the character itself if it is a mark.
    last: CharClass,
    last_mark: u8,
    /// The position of the last character in its word or in its run of one class, from 1.
    run: u32,
}

impl TextTally {
    /// Adds a piece of the text.
    pub(in crate::dialect) fn add(&mut self, piece: &str) {
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        let bytes = piece.as_bytes();
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if byte.is_ascii_lowercase() {
                // Most of a text are small letters, so these are counted at once.
                let is_small = |byte: &&u8| byte.is_ascii_lowercase();
                let letters = bytes[at..].iter().take_while(is_small).count();
                self.add_small_letters(letters);
                at += letters;
            } else if let Some(class) = ASCII_CLASSES.get(usize::from(byte)) {
                self.add_ascii(byte, *class);
                at += 1;
            } else {
                let Some(wide) = piece.get(at..).and_then(|rest| rest.chars().next()) else {
                    return;
                };
                self.add_wide(wide);
                at += wide.len_utf8();
            }
        }
    }

    /// Ends the run of characters, because what is added next belongs to another text.
    pub(in crate::dialect) fn end_text(&mut self) {
        (self.last, self.run) = (CharClass::Start, 0);
    }

    /// Adds the counts of another text.
    pub(super) fn merge(&mut self, other: &TextTally) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.end_text();
    }

    /// Extends the counts of `measured` bytes to `all` bytes of the same kind of text.
    pub(super) fn extrapolate(&mut self, measured: u64, all: u64) {
        for count in &mut self.counts {
            *count = extrapolate(*count, measured, all);
        }
        self.bytes = extrapolate(self.bytes, measured, all);
    }

    /// Returns how many bytes were added.
    #[must_use]
    pub(in crate::dialect) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the count of each unit, in the order of [`TextUnit`].
    #[must_use]
    pub(in crate::dialect) fn counts(&self) -> &[u64; UNITS] {
        &self.counts
    }

    fn count(&mut self, unit: TextUnit) {
        let count = &mut self.counts[unit as usize];
        *count = count.saturating_add(1);
    }

    fn add_ascii(&mut self, byte: u8, class: CharClass) {
        if class == CharClass::Capital {
            return self.add_capital();
        }
        let is_first = self.last != class;
        self.run = if is_first { 1 } else { self.run.saturating_add(1) };
        match class {
            CharClass::Digit => {
                self.count(TextUnit::Digit);
                if self.run % 3 == 1 {
                    self.count(TextUnit::DigitGroup);
                }
            }
            CharClass::Space => match self.run {
                1 => {}
                2 => self.count(TextUnit::SpaceRun),
                _ => self.count(TextUnit::MoreSpace),
            },
            CharClass::LineFeed if is_first => self.count(TextUnit::LineFeed),
            CharClass::LineFeed => self.count(TextUnit::MoreLineFeed),
            CharClass::Mark if is_first => self.count(TextUnit::Mark),
            CharClass::Mark if self.last_mark == byte => self.count(TextUnit::RepeatedMark),
            CharClass::Mark => self.count(TextUnit::MoreMark),
            _ => self.count(TextUnit::Control),
        }
        (self.last, self.last_mark) = (class, byte);
    }

    /// Adds so many small letters, which stand next to each other.
    fn add_small_letters(&mut self, letters: usize) {
        let letters = u32::try_from(letters).unwrap_or(u32::MAX);
        if matches!(self.last, CharClass::Small | CharClass::Capital) {
            self.extend_word(letters);
        } else {
            self.begin_word();
            self.extend_word(letters.saturating_sub(1));
        }
        self.last = CharClass::Small;
    }

    fn add_capital(&mut self) {
        if self.last == CharClass::Capital {
            self.extend_word(1);
            self.count(TextUnit::Capital);
        } else {
            self.begin_word();
        }
        self.last = CharClass::Capital;
    }

    fn begin_word(&mut self) {
        let is_spaced = self.last == CharClass::Space;
        self.count(if is_spaced { TextUnit::SpacedWord } else { TextUnit::Word });
        self.run = 1;
    }

    /// Adds letters to a word of `run` letters.
    fn extend_word(&mut self, letters: u32) {
        let before = self.run;
        self.run = before.saturating_add(letters);
        if self.run < LONG_FROM {
            return;
        }
        let kinds = [
            (TextUnit::LongLetter, LONG_FROM, LONGER_FROM),
            (TextUnit::LongerLetter, LONGER_FROM, LONGEST_FROM),
            (TextUnit::LongestLetter, LONGEST_FROM, u32::MAX),
        ];
        for (unit, from, until) in kinds {
            let counted = self.run.min(until - 1).saturating_sub(before.max(from - 1));
            let count = &mut self.counts[unit as usize];
            *count = count.saturating_add(u64::from(counted));
        }
    }

    fn add_wide(&mut self, wide: char) {
        let unit = match wide {
            '\u{80}'..='\u{2FF}' | '\u{1E00}'..='\u{1EFF}' => TextUnit::AccentedLetter,
            '\u{370}'..='\u{52F}' => TextUnit::GreekOrCyrillic,
            '\u{300}'..='\u{7FF}' => TextUnit::OtherTwoBytes,
            '\u{2000}'..='\u{2FFF}' | '\u{3000}'..='\u{303F}' | '\u{E000}'..='\u{FFFF}' => {
                TextUnit::Symbol
            }
            '\u{3040}'..='\u{30FF}' => TextUnit::Kana,
            '\u{3400}'..='\u{9FFF}' => TextUnit::Han,
            '\u{AC00}'..='\u{D7AF}' => TextUnit::Hangul,
            '\u{800}'..='\u{FFFF}' => TextUnit::OtherScript,
            _ => TextUnit::FourBytes,
        };
        self.count(unit);
        // A letter with an accent continues its word.
        let is_in_word = unit == TextUnit::AccentedLetter
            && matches!(self.last, CharClass::Small | CharClass::Capital);
        if !is_in_word {
            (self.last, self.run) = (CharClass::Wide, 1);
        }
    }
}
