//! Random bits, of which secrets are made.

use super::error::ManagementError;

/// Returns random bits for a secret.
pub(crate) fn random_bits() -> Result<[u8; 32], ManagementError> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|why| ManagementError::NoRandomBits(why.to_string()))?;
    Ok(bits)
}
