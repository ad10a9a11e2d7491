//! Uploads: images to be edited. They are as large as all other calls together, so only so many
//! bytes of them are in memory at a time; whoever comes then waits until there is room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use http::header::CONTENT_TYPE;
use pingora_proxy::Session;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Gateway;
use super::intake::{self, Taken};
use super::refusal::Refusal;
use crate::dialect::call::Opened;
use crate::dialect::form::{Form, FormFault, FormLimits, FormReader};
use crate::dialect::{CallFault, images};

/// Beside its file a form may have so many bytes.
const FORM_BYTES_MAX: usize = 1 << 20;
/// Parts of a form, at most.
const PARTS_MAX: usize = 16;
/// Room is given out in units of so many bytes.
const UNIT: usize = 1 << 10;
/// Uploads are collected in buffers of this size, whatever theirs is: the allocator keeps what is
/// so large apart from each thread's own memory, and gives it back to the system when it is free.
/// What is never written of a buffer takes up no memory.
const BUFFER_BYTES: usize = 8 << 20;

/// The room for uploads.
#[derive(Debug)]
pub struct Uploads {
    room: Arc<Semaphore>,
    units_max: u32,
    waiting: AtomicUsize,
}

/// Room that an upload takes up, until it is dropped.
#[derive(Debug)]
pub struct Room(OwnedSemaphorePermit);

impl Uploads {
    /// Room for so many bytes in all.
    #[must_use]
    pub fn new(bytes_max: usize) -> Uploads {
        let units_max = units(bytes_max);
        let room = Arc::new(Semaphore::new(units_max as usize));
        Uploads { room, units_max, waiting: AtomicUsize::new(0) }
    }

    /// Whether anybody waits for room.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for room for so many bytes, or for all there is.
    async fn enter(&self, bytes: usize) -> Option<Room> {
        let units = units(bytes).min(self.units_max);
        let _waiting = Waiting::one(&self.waiting);
        self.room.clone().acquire_many_owned(units).await.ok().map(Room)
    }
}

impl Room {
    /// Gives back what an upload of so many bytes does not need.
    fn shrink(&mut self, bytes: usize) {
        let surplus = self.0.num_permits().saturating_sub(units(bytes) as usize);
        drop(self.0.split(surplus));
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

/// Somebody who waits, until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn one(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes in an image to be edited, with what is to become of it. It never touches a disk.
///
/// # Errors
/// It is no form, or an unsound one; its file is too large; it did not come whole and in time; or
/// there was no room for it.
pub(super) async fn edit(gateway: &Gateway, session: &mut Session) -> Result<Taken, Refusal> {
    let file_bytes_max = gateway.limits.image_bytes_max;
    let most = file_bytes_max.saturating_add(FORM_BYTES_MAX);
    let kind = session.get_header(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let limits =
        FormLimits { parts_max: PARTS_MAX, text_bytes_max: FORM_BYTES_MAX, file_bytes_max };
    let mut reader = FormReader::new(kind, limits).map_err(refused)?;
    let told = intake::announced(session, most).await.map_err(|why| match why {
        Refusal::TooLarge(_) => Refusal::FileTooLarge(file_bytes_max),
        other => other,
    })?;
    let patience = gateway.timeouts.body;
    let entering = gateway.uploads.enter(told.unwrap_or(most));
    let entered = tokio::time::timeout(patience, entering).await.ok().flatten();
    let mut room = entered.ok_or(Refusal::Crowded)?;
    let reading = async {
        let mut pieces = intake::pieces(session, most);
        let mut buffer = BytesMut::new();
        while let Some(mut piece) = pieces.next().await? {
            while !piece.is_empty() {
                if buffer.capacity() == 0 {
                    buffer = BytesMut::with_capacity(BUFFER_BYTES);
                }
                let fits = piece.split_to(piece.len().min(buffer.capacity()));
                buffer.extend_from_slice(&fits);
                reader.push(buffer.split().freeze()).map_err(refused)?;
            }
        }
        reader.finish().map_err(refused)
    };
    let read: Result<Form, Refusal> = match tokio::time::timeout(patience, reading).await {
        Ok(read) => read,
        Err(_) => Err(Refusal::BodyBroken),
    };
    let (document, file) = images::edit(read?).map_err(Refusal::Call)?;
    room.shrink(file.length.saturating_add(document.body().len()));
    let opened = Opened::form(document, file).map_err(Refusal::Call)?;
    Ok(Taken { opened, room: Some(room) })
}

fn refused(fault: FormFault) -> Refusal {
    match fault {
        FormFault::FileTooLarge { most, .. } => Refusal::FileTooLarge(most),
        FormFault::TooLarge(most) => Refusal::TooLarge(most),
        unsound => Refusal::Call(CallFault {
            code: "invalid_form",
            param: None,
            message: format!("send the image as multipart/form-data: {unsound}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_finds_no_room_waits_until_others_have_left_some() {
        let uploads = Uploads::new(10 * UNIT);
        let mut first = uploads.enter(100 * UNIT).await.expect("all of the room");
        let mut second = Box::pin(uploads.enter(4 * UNIT));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(uploads.is_crowded());
        first.shrink(6 * UNIT);
        let second = second.await.expect("room");
        assert!(!uploads.is_crowded());
        assert!(uploads.enter(1).now_or_never().is_none());
        drop(second);
        assert!(uploads.enter(4 * UNIT).now_or_never().flatten().is_some());
        drop(first);
        assert_eq!(uploads.room.available_permits(), 10);
    }
}
