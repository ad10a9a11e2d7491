//! Bodies in chunks, followed byte by byte: what two readers could end in two places is refused.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::head::is_token_byte;

/// Digits of the size of a chunk, at most.
const SIZE_DIGITS_MAX: u8 = 15;
/// Bytes of all that is neither size nor data, at most. Nothing is done with it.
const OVERHEAD_BYTES_MAX: usize = 8 << 10;

/// How far a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkPosition {
    /// In the size of a chunk, of which there are so many digits.
    Size {
        digits: u8,
        size: u64,
    },
    /// Between a size and what is said of the chunk.
    SizePadding {
        size: u64,
    },
    /// In what is said of a chunk.
    Extension {
        size: u64,
    },
    /// Before the LF after a size.
    SizeLf {
        size: u64,
    },
    /// In data, of which so much is to come.
    Data {
        left: u64,
    },
    /// Before the CR, and the LF, after data.
    DataEnd {
        cr: bool,
    },
    /// Before a field that follows the chunks, or the end.
    Trailer,
    /// In the name of a field, and its value.
    TrailerName,
    TrailerValue,
    /// Before the LF after a field, and of the end.
    TrailerLf,
    FinalLf,
    Finished,
}

/// A body in chunks, as far as it has been read.
#[derive(Debug)]
pub struct ChunkReader {
    position: ChunkPosition,
    overhead_bytes: usize,
}

/// It is no such body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidChunk;

impl Default for ChunkReader {
    fn default() -> ChunkReader {
        ChunkReader { position: ChunkPosition::Size { digits: 0, size: 0 }, overhead_bytes: 0 }
    }
}

impl ChunkReader {
    /// Whether all of the body was there.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.position == ChunkPosition::Finished
    }

    /// Reads on. What comes after the end is not looked at.
    ///
    /// # Errors
    /// These bytes cannot go on like this.
    pub fn advance(&mut self, mut bytes: &[u8]) -> Result<(), InvalidChunk> {
        while let [first, rest @ ..] = bytes {
            if let ChunkPosition::Data { left } = self.position {
                let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[skipped..];
                let left = left - skipped as u64;
                self.position = if left == 0 {
                    ChunkPosition::DataEnd { cr: true }
                } else {
                    ChunkPosition::Data { left }
                };
                continue;
            }
            if self.position == ChunkPosition::Finished {
                break;
            }
            self.position = self.next_position(*first).ok_or(InvalidChunk)?;
            bytes = rest;
        }
        if self.overhead_bytes > OVERHEAD_BYTES_MAX { Err(InvalidChunk) } else { Ok(()) }
    }

    /// Where a byte leads to that is no data.
    fn next_position(&mut self, byte: u8) -> Option<ChunkPosition> {
        let visible = byte == b'\t' || matches!(byte, b' '..=b'~');
        let needed = matches!(
            self.position,
            ChunkPosition::Size { .. }
                | ChunkPosition::SizeLf { .. }
                | ChunkPosition::DataEnd { .. }
        );
        self.overhead_bytes += usize::from(!needed);
        Some(match (self.position, byte) {
            (ChunkPosition::Size { digits, size }, b'\r') if digits > 0 => {
                ChunkPosition::SizeLf { size }
            }
            (ChunkPosition::Size { digits, size }, b';') if digits > 0 => {
                ChunkPosition::Extension { size }
            }
            (ChunkPosition::Size { digits, size }, b' ' | b'\t') if digits > 0 => {
                ChunkPosition::SizePadding { size }
            }
            (ChunkPosition::Size { digits, size }, _) if digits < SIZE_DIGITS_MAX => {
                let digit = char::from(byte).to_digit(16)?;
                ChunkPosition::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (ChunkPosition::SizePadding { size }, b' ' | b'\t') => {
                ChunkPosition::SizePadding { size }
            }
            (ChunkPosition::SizePadding { size }, b';') => ChunkPosition::Extension { size },
            (ChunkPosition::Extension { size }, b'\r') => ChunkPosition::SizeLf { size },
            (ChunkPosition::Extension { size }, _) if visible => ChunkPosition::Extension { size },
            (ChunkPosition::SizeLf { size: 0 } | ChunkPosition::TrailerLf, b'\n') => {
                ChunkPosition::Trailer
            }
            (ChunkPosition::SizeLf { size }, b'\n') => ChunkPosition::Data { left: size },
            (ChunkPosition::DataEnd { cr: true }, b'\r') => ChunkPosition::DataEnd { cr: false },
            (ChunkPosition::DataEnd { cr: false }, b'\n') => {
                ChunkPosition::Size { digits: 0, size: 0 }
            }
            (ChunkPosition::Trailer, b'\r') => ChunkPosition::FinalLf,
            (ChunkPosition::Trailer | ChunkPosition::TrailerName, _) if is_token_byte(byte) => {
                ChunkPosition::TrailerName
            }
            (ChunkPosition::TrailerName, b':') => ChunkPosition::TrailerValue,
            (ChunkPosition::TrailerValue, b'\r') => ChunkPosition::TrailerLf,
            (ChunkPosition::TrailerValue, _) if visible || byte >= 0x80 => {
                ChunkPosition::TrailerValue
            }
            (ChunkPosition::FinalLf, b'\n') => ChunkPosition::Finished,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn read(body: &[u8]) -> Result<bool, InvalidChunk> {
        let mut chunks = ChunkReader::default();
        chunks.advance(body).map(|()| chunks.is_finished())
    }

    #[rstest]
    #[case::nothing("0\r\n\r\n")]
    #[case::one("5\r\nhello\r\n0\r\n\r\n")]
    #[case::two("1\r\na\r\n00A\r\n0123456789\r\n000\r\n\r\n")]
    #[case::line_ends_as_data("4\r\n\r\n\r\n\r\n0\r\n\r\n")]
    #[case::extension("1;a=b\r\nx\r\n0;c=\"d e\"\r\n\r\n")]
    #[case::space_before_it("1 \t;a\r\nx\r\n0\r\n\r\n")]
    #[case::trailers("0\r\na: b\r\nc:\r\n\r\n")]
    #[case::what_follows("0\r\n\r\nGET \n\0")]
    fn sound_bodies_are_followed_to_their_end(#[case] body: &str) {
        assert_eq!(read(body.as_bytes()), Ok(true));
    }

    #[rstest]
    #[case::no_size("\r\n")]
    #[case::no_digit("g\r\n")]
    #[case::plus("+1\r\n")]
    #[case::prefix("0x1\r\n")]
    #[case::space_first(" 1\r\n")]
    #[case::space_last("1 \r\n")]
    #[case::huge("1234567890123456\r\n")]
    #[case::bare_lf("1\na")]
    #[case::bare_cr("1\ra")]
    #[case::lf_in_an_extension("1;a\nb\r\n")]
    #[case::quoted_lf("1;a=\"\n\"\r\n")]
    #[case::cr_in_an_extension("1;a\rb\r\n")]
    #[case::zero_in_an_extension("1;a\0\r\n")]
    #[case::data_too_long("1\r\nab\r\n")]
    #[case::data_without_cr("1\r\na\n")]
    #[case::data_without_end("1\r\na0\r\n\r\n")]
    #[case::trailer_without_colon("0\r\nx\r\n\r\n")]
    #[case::trailer_without_name("0\r\n: x\r\n\r\n")]
    #[case::folded_trailer("0\r\na: b\r\n c\r\n\r\n")]
    #[case::bare_lf_in_a_trailer("0\r\na: b\nc: d\r\n\r\n")]
    #[case::bare_lf_at_the_end("0\r\n\n")]
    fn others_are_not(#[case] body: &str) {
        assert_eq!(read(body.as_bytes()), Err(InvalidChunk));
    }

    #[test]
    fn there_may_be_any_number_of_chunks() {
        let many = "1\r\nx\r\n".repeat(100_000);
        assert_eq!(read(format!("{many}0\r\n\r\n").as_bytes()), Ok(true));
    }

    #[test]
    fn what_is_said_beside_the_data_is_bounded() {
        let most = "x".repeat(OVERHEAD_BYTES_MAX + 1);
        assert_eq!(read(format!("1;{most}").as_bytes()), Err(InvalidChunk));
        assert_eq!(read(format!("0\r\na: {most}").as_bytes()), Err(InvalidChunk));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_pieces_a_body_comes(
            pieces in prop::collection::vec("[0-9a-f;\r\n ]{0,6}|1\r\na\r\n|0\r\n|\r\n", 0..8),
        ) {
            let mut chunks = ChunkReader::default();
            let in_pieces = pieces.iter().try_for_each(|piece| chunks.advance(piece.as_bytes()));
            let whole = pieces.concat();
            prop_assert_eq!(in_pieces.map(|()| chunks.is_finished()), read(whole.as_bytes()));
        }
    }
}
