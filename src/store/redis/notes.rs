//! Notes in keys of their own, under their account's hash tag. The server drops them when their
//! time has come; nothing else bounds how many of them an account has.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;

use super::super::lookup;
use super::Redis;
use super::keys::AccountKeys;
use crate::ledger::{AccountName, Unavailable};
use crate::notes::{self, NoteRefused, Notes};

/// No life is longer, in ms: the server adds it to its clock and has 63 bits for the sum.
const LIFE_MS_MAX: u64 = 1 << 52;

#[async_trait]
impl Notes for Redis {
    async fn keep(
        &self,
        account: &AccountName,
        names: &[String],
        note: Bytes,
        life_ms: u64,
    ) -> Result<(), NoteRefused> {
        notes::fits(names, &note)?;
        let keys = AccountKeys::of(account);
        let life_ms = life_ms.min(LIFE_MS_MAX);
        // They go out one after the other without waiting, and each is answered for itself.
        let writes = names.iter().map(|name| {
            let key = keys.note(name);
            // The server knows no life of nothing.
            if life_ms == 0 {
                redis::cmd("DEL").arg(key).to_owned()
            } else {
                redis::cmd("SET").arg(key).arg(&note[..]).arg("PX").arg(life_ms).to_owned()
            }
        });
        let writes = writes.map(|write| async move {
            let _: redis::Value = self.connection().await?.query(&write).await?;
            Ok::<(), Unavailable>(())
        });
        for written in join_all(writes).await {
            written?;
        }
        Ok(())
    }

    async fn find(
        &self,
        account: &AccountName,
        names: &[String],
    ) -> Result<Vec<Option<Bytes>>, Unavailable> {
        let keys = AccountKeys::of(account);
        let keys = &keys;
        lookup::find(names, |few| async move {
            let mut read = redis::cmd("MGET");
            few.iter().for_each(|name| {
                read.arg(keys.note(name));
            });
            self.connection().await?.query(&read).await
        })
        .await
    }
}
