//! Bytes as hexadecimal digits.

/// Returns the bytes in lower-case hexadecimal, two digits each.
#[must_use]
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let mut digits = Vec::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| digits.extend_from_slice(&PAIRS[usize::from(*byte)]));
    String::from_utf8(digits).unwrap_or_default()
}

/// The digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Returns the bytes of an even number of hexadecimal digits; `None` if the text is anything else.
#[must_use]
pub(crate) fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let value =
        |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((value(*high)? << 4) | value(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::{from_hex, to_hex};

    #[test]
    fn digits_are_read_as_they_were_written() {
        assert_eq!(from_hex("001fa0ff"), Some(vec![0, 0x1f, 0xa0, 0xff]));
        assert_eq!(from_hex(""), Some(Vec::new()));
        for bad in ["0", "0g", "+1", "é"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(to_hex(&[0, 0x1f, 0xa0, 0xff]), "001fa0ff");
        assert_eq!(to_hex(&[]), "");
    }
}
