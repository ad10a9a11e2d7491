//! Numbers that look like chance and are none, so that a test can compute them again.

/// FNV-1a of 64 bits.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The bytes that follow from a seed: of number `i`, the highest byte of `seed * (2 * i + 1)`,
/// modulo 2^64.
pub(super) fn bytes(seed: u64) -> impl Iterator<Item = u8> {
    (0_u64..).map(move |number| {
        let product = seed.wrapping_mul(number.wrapping_mul(2).wrapping_add(1));
        product.to_be_bytes()[0]
    })
}
