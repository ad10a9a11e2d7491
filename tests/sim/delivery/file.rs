//! Files, whose length is told before they come bit by bit.

use std::io;

use super::super::faults::Fault;
use super::{After, Delivery, Opening, break_off};

const CHUNK_BYTES: usize = 16 << 10;

impl Delivery<'_> {
    /// A file.
    pub(in super::super) async fn file(
        &mut self,
        opening: &Opening<'_>,
        bytes: &[u8],
    ) -> io::Result<After> {
        if self.faults.number(Fault::Reset) == Some(0) {
            return Ok(After::Reset);
        }
        if self.faults.number(Fault::Stall) == Some(0) {
            return Ok(self.stall().await);
        }
        if self.wire.peer_is_gone() {
            return Ok(After::Close);
        }
        let head = self.head(opening, &format!("content-length: {}", bytes.len()));
        self.wire.write(head.as_bytes()).await?;
        let break_off = break_off(self.faults);
        let limit = break_off.map_or(usize::MAX, |(_, limit)| limit);
        for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate().take(limit) {
            if index > 0 && self.pause(Fault::ChunkDelay).await {
                return Ok(After::Close);
            }
            self.body(chunk, false).await?;
        }
        if let Some((fault, _)) = break_off {
            return Ok(self.broken(fault).await);
        }
        self.ticket.complete(true);
        Ok(After::Keep)
    }

    /// Nothing but another address.
    pub(in super::super) async fn moved(
        &mut self,
        opening: &Opening<'_>,
        location: &str,
    ) -> io::Result<After> {
        let head = self.head(opening, &format!("location: {location}\r\ncontent-length: 0"));
        self.ticket.complete(true);
        self.wire.write(head.as_bytes()).await?;
        Ok(After::Keep)
    }
}
