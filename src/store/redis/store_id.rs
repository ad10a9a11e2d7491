//! The id of the store, which is written in the store. A server that was emptied, or that came up
//! with other data, is the same process and answers as before; only the id shows that it is another
//! store.
//!
//! A cluster has the id in many keys, spread evenly over the slots, so that a master that loses its
//! data loses copies of the id as well. When slots move to another master, these keys move with
//! them.

use once_cell::sync::Lazy;
use std::collections::BTreeSet;

use redis::Cmd;
use sha2::{Digest, Sha256};

use super::shared_store::RedisStore;
use crate::hex::to_hex;
use crate::ledger::Unavailable;

/// The number of keys that hold the id in a cluster.
const ID_KEY_COUNT: usize = 64;
const SLOT_COUNT: usize = 16_384;

/// The ids that the keys hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum StoredIds {
    /// No key holds an id.
    Missing,
    /// All keys hold this id.
    Consistent(Box<str>),
    /// Some keys hold no id, or the keys hold different ids. These ids were found.
    Inconsistent(BTreeSet<String>),
}

impl StoredIds {
    fn classify(stored_ids: &[Option<String>]) -> StoredIds {
        let names: BTreeSet<String> = stored_ids.iter().flatten().cloned().collect();
        let is_whole = names.len() == 1 && stored_ids.iter().all(Option::is_some);
        match names.first() {
            None => StoredIds::Missing,
            Some(name) if is_whole => StoredIds::Consistent(name.as_str().into()),
            Some(_) => StoredIds::Inconsistent(names),
        }
    }

    /// Whether some or all keys lack the id, and no key holds another one.
    pub(in crate::store) fn lacks_only(&self, id: &str) -> bool {
        match self {
            StoredIds::Missing => true,
            StoredIds::Consistent(_) => false,
            StoredIds::Inconsistent(ids) => ids.iter().all(|found| found == id),
        }
    }
}

/// Returns a new id that is derived from the ids that were found, so that all gateways that find
/// the same ids choose the same new one.
pub(in crate::store) fn derive_next_id(found: &BTreeSet<String>) -> String {
    let all: Vec<&str> = found.iter().map(String::as_str).collect();
    let digest = Sha256::digest(all.join(","));
    to_hex(&digest[..16])
}

impl RedisStore {
    /// Reads the id of the store from all keys that may hold it.
    pub(in crate::store) async fn read_store_ids(&self) -> Result<StoredIds, Unavailable> {
        let commands = self.id_keys().await?.iter().map(|id_key| get_command(id_key)).collect();
        Ok(StoredIds::classify(&self.connection().await?.query_each(commands).await?))
    }

    /// Writes the id to all keys that hold none. If the first key already holds an id, because
    /// another gateway was first, that id is written to the other keys instead.
    pub(in crate::store) async fn set_store_id_if_absent(
        &self,
        id: &str,
    ) -> Result<(), Unavailable> {
        let id_keys = self.id_keys().await?;
        let Some((first, others)) = id_keys.split_first() else { return Ok(()) };
        let set = |id_key: &String, id: &str| {
            redis::cmd("SET").arg(id_key).arg(id).arg("NX").arg("GET").to_owned()
        };
        let connection = self.connection().await?;
        let known: Option<String> = connection.query(&set(first, id)).await?;
        let id = known.as_deref().unwrap_or(id);
        let others = others.iter().map(|id_key| set(id_key, id)).collect();
        let _: Vec<Option<String>> = connection.query_each(others).await?;
        Ok(())
    }

    /// Writes the id to all keys, and replaces any other id.
    pub(in crate::store) async fn overwrite_store_id(&self, id: &str) -> Result<(), Unavailable> {
        let id_keys = self.id_keys().await?;
        let set = |id_key: &String| redis::cmd("SET").arg(id_key).arg(id).to_owned();
        let _: Vec<String> =
            self.connection().await?.query_each(id_keys.iter().map(set).collect()).await?;
        Ok(())
    }

    /// Fails if the store, or in a cluster the part of it that would contain `key`, is not the
    /// known one: then it proves nothing that the key is missing.
    pub(super) async fn confirm_absence(&self, key: &str) -> Result<(), Unavailable> {
        let Some(run_gate) = &self.run_gate else { return Ok(()) };
        let id_keys = self.id_keys().await?;
        let id_key = &id_keys[key_slot(key) * id_keys.len() / SLOT_COUNT];
        let found: Option<String> = self.connection().await?.query(&get_command(id_key)).await?;
        let known = run_gate.store_id();
        match (found.as_deref(), known.as_deref()) {
            (Some(found), Some(known)) if found == known => Ok(()),
            (Some(_), None) => Ok(()),
            _ => Err(Unavailable("the store is not the one that is known".to_owned())),
        }
    }

    async fn id_keys(&self) -> Result<&'static [String], Unavailable> {
        static ALL: Lazy<Vec<String>> = Lazy::new(id_keys_by_slot);
        let is_cluster = self.connection().await?.is_cluster();
        Ok(if is_cluster { &ALL } else { &ALL[..1] })
    }
}

fn get_command(id_key: &str) -> Cmd {
    redis::cmd("GET").arg(id_key).to_owned()
}

/// Returns one key for each of `ID_KEY_COUNT` equal ranges of slots, in the order of the ranges.
fn id_keys_by_slot() -> Vec<String> {
    let mut id_keys = vec![None; ID_KEY_COUNT];
    for number in 0_u32.. {
        let id_key = format!("tollgate:store:{{{number}}}");
        id_keys[key_slot(&id_key) * ID_KEY_COUNT / SLOT_COUNT].get_or_insert(id_key);
        if id_keys.iter().all(Option::is_some) {
            break;
        }
    }
    id_keys.into_iter().flatten().collect()
}

/// Returns the slot of a key in a cluster. If there is text between the first braces of the key,
/// only that text determines the slot.
fn key_slot(key: &str) -> usize {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let counted = tagged.map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    usize::from(crc16(counted.as_bytes())) % SLOT_COUNT
}

/// Returns the CRC-16/XMODEM of `bytes`, from which Redis computes slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // The replies of CLUSTER KEYSLOT.
        for (key, expected) in
            [("foo", 12_182), ("tollgate:{foo}:account", 12_182), ("{}foo", 9_500)]
        {
            assert_eq!(key_slot(key), expected, "{key}");
        }
    }

    #[test]
    fn each_part_of_the_slots_has_a_place() {
        let id_keys = id_keys_by_slot();
        assert_eq!(id_keys.len(), ID_KEY_COUNT);
        for (part, id_key) in id_keys.iter().enumerate() {
            assert_eq!(key_slot(id_key) * ID_KEY_COUNT / SLOT_COUNT, part, "{id_key}");
        }
    }

    #[test]
    fn a_name_that_is_missing_somewhere_is_not_whole() {
        let [a, b] = ["a", "b"].map(|name| Some(name.to_owned()));
        assert_eq!(StoredIds::classify(&[None, None]), StoredIds::Missing);
        assert_eq!(StoredIds::classify(&[a.clone(), a.clone()]), StoredIds::Consistent("a".into()));
        for part in [[a.clone(), None], [a, b]] {
            assert!(matches!(StoredIds::classify(&part), StoredIds::Inconsistent(_)), "{part:?}");
        }
    }
}
