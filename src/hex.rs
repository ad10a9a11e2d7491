//! Bytes as hexadecimal digits.

/// Returns the bytes in lower-case hexadecimal, two digits each.
#[must_use]
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)] as char);
    bytes.iter().flat_map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::to_hex;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(to_hex(&[0, 0x1f, 0xa0, 0xff]), "001fa0ff");
        assert_eq!(to_hex(&[]), "");
    }
}
