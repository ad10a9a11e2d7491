//! The checksum of gzip and PNG.

const TABLE: [u32; 256] = table();

/// CRC-32 of bytes that come in pieces.
pub(super) fn crc32(pieces: &[&[u8]]) -> u32 {
    !pieces
        .iter()
        .copied()
        .flatten()
        .fold(u32::MAX, |crc, byte| (crc >> 8) ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)])
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte: u32 = 0;
    let mut at = 0;
    while at < table.len() {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[at] = crc;
        byte += 1;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(&[b"12345", b"6789"]), 0xcbf4_3926);
        assert_eq!(crc32(&[b"IEND"]), 0xae42_6082);
    }
}
