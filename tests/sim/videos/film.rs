//! The bytes of a finished video: noise that begins as such a file does.

use super::super::noise;

/// Of each second of a video.
const SECOND_BYTES: usize = 100 << 10;
const KINDS: &[u8] = b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isommp42";
/// The length and the kind of a box.
const BOX_FRAME: usize = 8;

/// The file of a video of so many seconds, each of 100 KiB.
pub(crate) fn film(id: &str, seconds: u64) -> Vec<u8> {
    let seconds = usize::try_from(seconds).expect("an address space of 64 bits");
    footage(id, seconds * SECOND_BYTES)
}

/// The file of a video with so many bytes; those by which the format is known are left out where
/// they are too few.
///
/// After a box that names the kind of the file comes one of noise from the FNV-1a of the id.
pub(crate) fn footage(id: &str, length: usize) -> Vec<u8> {
    let mut footage = Vec::with_capacity(length);
    if let Some(noise) = length.checked_sub(KINDS.len() + BOX_FRAME) {
        let content = u32::try_from(noise + BOX_FRAME).expect("a video is smaller than 4 GiB");
        footage.extend_from_slice(KINDS);
        footage.extend_from_slice(&content.to_be_bytes());
        footage.extend_from_slice(b"mdat");
    }
    let missing = length - footage.len();
    footage.extend(noise::bytes(noise::fnv(id.as_bytes())).take(missing));
    footage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_film_is_its_own_and_as_long_as_asked_for() {
        let two = film("a", 2);
        assert_eq!(two.len(), 200 << 10);
        assert_eq!(two, film("a", 2));
        assert_ne!(two, film("b", 2));
        assert_eq!(&two[4..8], b"ftyp");
        assert_eq!(two[24..32], *b"\x00\x03\x1f\xe8mdat");
        for length in [0, 1, 31, 32, 33] {
            assert_eq!(footage("a", length).len(), length);
        }
    }
}
