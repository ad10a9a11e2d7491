//! Uploads: images to be edited, or to begin a video with. They are as large as all other calls
//! together, so only so many bytes of them are in memory at a time; whoever has more to send then
//! waits until there is room.
//!
//! Memory is acquired as bytes arrive. Uploads that each hold a part of what they need could
//! deadlock. Hence enough for the largest upload is reserved: the upload that gets the reserve can
//! always finish.
//!
//! An account has a share of the room, and one of its uploads at a time waits for more. So whoever
//! sends few waits behind one upload of each other account, however many those send.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use pingora_proxy::Session;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::Gateway;
use super::api_error::{ApiError, CapacityError, RequestError};
use super::body_budget;
use super::limits::Limits;
use super::request_body::{self, BodyPieces, PayingAccount, RequestBody};
use super::slow_bodies::BodyWatch;
use super::tenant_budget::{
    BudgetPermit, Resource, ResourcePool, Tenant, TenantBudget, TenantShare,
};
use crate::catalogue::ModelKind;
use crate::dialect::call::ParsedBody;
use crate::dialect::form::{Form, FormError, FormLimits, FormReader};
use crate::dialect::images;
use crate::dialect::videos;

/// Beside its file a form may have so many bytes.
const FORM_FIELDS_BYTES_MAX: usize = 1 << 20;
/// Parts of a form, at most.
const PARTS_MAX: usize = 16;
/// Room is counted in units of so many bytes.
const UNIT_BYTES: usize = 1 << 10;
/// And taken in steps of so many.
const STEP_UNITS: u32 = 256;
const STEP_BYTES: usize = STEP_UNITS as usize * UNIT_BYTES;
/// With up to this number of bytes an account does not wait for the sake of newcomers.
const ACCOUNT_BYTES_MIN: usize = 4 << 20;
/// Whether others of its account have made room is looked at this often, at least.
const SHARE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Up to so many bytes take no room: every request has as much.
const UNCOUNTED_BYTES_MAX: usize = 64 << 10;
/// While others wait for memory, an upload that holds some must send at least this fast,
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// after so long.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// Uploads are collected in buffers of this size, whatever theirs is: the allocator keeps what is
/// so large apart from each thread's own memory, and gives it back to the system when it is free.
/// What is never written of a buffer takes up no memory.
const BUFFER_BYTES: usize = 8 << 20;
/// Those that say that they are no longer than this get a buffer of their length.
const SMALL_UPLOAD_BYTES_MAX: usize = 1 << 20;
/// So many bytes are gathered before they are looked at: many small pieces would cost more than
/// their bytes.
const PARSE_BATCH_BYTES: usize = 64 << 10;

/// The room for uploads.
#[derive(Debug)]
pub struct UploadBudget {
    semaphore: Arc<Semaphore>,
    /// What is set apart, for one at a time.
    reserved: Arc<Mutex<()>>,
    waiting: AtomicUsize,
    shares: TenantBudget,
}

/// Room that an upload takes up, until it is dropped.
#[derive(Debug)]
pub struct UploadPermit {
    semaphore_permit: Option<OwnedSemaphorePermit>,
    reserved: Option<OwnedMutexGuard<()>>,
    /// What is taken, as a part of its account's share.
    share: BudgetPermit,
}

impl UploadBudget {
    /// Room for so many bytes in all, of which the largest upload has `one_bytes_max`. An account
    /// has up to `account_bytes_max` of the rest; 0 for no bound.
    #[must_use]
    pub fn new(bytes_max: usize, one_bytes_max: usize, account_bytes_max: usize) -> UploadBudget {
        let units = bytes_max.saturating_sub(one_bytes_max) / UNIT_BYTES;
        let semaphore = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        let pool = ResourcePool::new(units.saturating_mul(UNIT_BYTES));
        let share = TenantShare { max: account_bytes_max, min: ACCOUNT_BYTES_MIN };
        let shares = TenantBudget::new(Resource::UploadBytes, &pool, share);
        UploadBudget { semaphore, reserved: Arc::default(), waiting: AtomicUsize::new(0), shares }
    }

    /// Room for an upload of which nothing has come.
    fn empty_permit(&self, tenant: &Arc<Tenant>) -> UploadPermit {
        UploadPermit { semaphore_permit: None, reserved: None, share: self.shares.permit(tenant) }
    }

    /// Waits for a step, first within the share and then in the room.
    async fn acquire_step(&self, share: &mut BudgetPermit) -> Option<OwnedSemaphorePermit> {
        while share.grow(STEP_BYTES).is_err() {
            share.pool().wait_for_release(SHARE_POLL_INTERVAL).await;
        }
        self.semaphore.clone().acquire_many_owned(STEP_UNITS).await.ok()
    }

    /// Waits for what is set apart.
    async fn acquire_reserved(&self) -> OwnedMutexGuard<()> {
        let _waiting = UploadWaiter::register(&self.waiting);
        self.reserved.clone().lock_owned().await
    }

    fn try_acquire_step(&self, share: &mut BudgetPermit) -> Option<OwnedSemaphorePermit> {
        share.grow(STEP_BYTES).ok()?;
        let step = self.semaphore.clone().try_acquire_many_owned(STEP_UNITS).ok();
        if step.is_none() {
            share.shrink(STEP_BYTES);
        }
        step
    }

    /// Whether anybody waits for room.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl UploadPermit {
    fn units(&self) -> usize {
        self.semaphore_permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Whether so many bytes have their room.
    fn covers(&self, bytes: usize) -> bool {
        bytes <= UNCOUNTED_BYTES_MAX
            || self.reserved.is_some()
            || self.units() >= bytes.div_ceil(UNIT_BYTES)
    }

    /// Waits for a step more, or for what is set apart.
    async fn acquire_more(&mut self, uploads: &UploadBudget) {
        let step = if let Some(step) = uploads.try_acquire_step(&mut self.share) {
            step
        } else {
            let tenant = self.share.tenant().clone();
            let _turn = tenant.upload_turn.lock().await;
            tokio::select! {
                biased;
                Some(step) = uploads.acquire_step(&mut self.share) => step,
                apart = uploads.acquire_reserved() => {
                    // That is enough for all of it.
                    self.semaphore_permit = None;
                    self.reserved = Some(apart);
                    self.share.shrink(self.share.held());
                    return;
                }
            }
        };
        match &mut self.semaphore_permit {
            Some(taken) => taken.merge(step),
            None => self.semaphore_permit = Some(step),
        }
    }

    /// Gives back what an upload of so many bytes does not need, and what is set apart if there is
    /// other room by now.
    fn release_surplus(&mut self, bytes: usize, uploads: &UploadBudget) {
        let needed = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        if self.reserved.is_some() && self.share.grow(needed as usize * UNIT_BYTES).is_ok() {
            self.semaphore_permit = uploads.semaphore.clone().try_acquire_many_owned(needed).ok();
            if self.semaphore_permit.is_some() {
                self.reserved = None;
            }
        }
        let surplus = self.units().saturating_sub(bytes.div_ceil(UNIT_BYTES));
        drop(self.semaphore_permit.as_mut().and_then(|taken| taken.split(surplus)));
        let unused = self.share.held().saturating_sub(self.units() * UNIT_BYTES);
        self.share.shrink(unused);
    }
}

/// The room that the configuration allows.
pub(super) fn upload_budget(limits: &Limits) -> UploadBudget {
    let one = limits.image_bytes_max.saturating_add(FORM_FIELDS_BYTES_MAX);
    UploadBudget::new(limits.uploads_bytes_max, one, limits.uploads_per_account_bytes_max)
}

/// Somebody who waits, until this is dropped.
struct UploadWaiter<'a>(&'a AtomicUsize);

impl UploadWaiter<'_> {
    fn register(count: &AtomicUsize) -> UploadWaiter<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        UploadWaiter(count)
    }
}

impl Drop for UploadWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long an upload takes.
struct UploadTiming {
    /// For waiting for room.
    permit_timeout: Duration,
    /// For the client.
    client_rate: body_budget::BodyRate,
    permit_time: Duration,
    client_time: Duration,
    /// How long the client had been waited for, and how much had come, when it first took room.
    permit_since: Option<(Duration, usize)>,
}

impl UploadTiming {
    fn new(permit_timeout: Duration, client_rate: body_budget::BodyRate) -> UploadTiming {
        let [permit_time, client_time] = [Duration::ZERO; 2];
        UploadTiming { permit_timeout, client_rate, permit_time, client_time, permit_since: None }
    }

    /// What is left for the client to send more.
    fn time_left(&self, waited: Duration) -> Duration {
        self.client_rate.deadline().saturating_sub(self.client_time).saturating_sub(waited)
    }

    /// A client that is too slow has to go, all the more if others wait for its room.
    fn check_rate(
        &self,
        bytes: usize,
        waited: Duration,
        uploads: &UploadBudget,
    ) -> Result<(), ApiError> {
        let too_slow =
            self.permit_since.filter(|_| uploads.has_waiters()).is_some_and(|(then, before)| {
                let waited = (self.client_time + waited).saturating_sub(then);
                let due = waited.as_secs().saturating_mul(BYTES_PER_SECOND_MIN);
                waited >= SLOW_AFTER && (bytes.saturating_sub(before) as u64) < due
            });
        if too_slow || self.time_left(waited).is_zero() {
            Err(request_body::reject_slow_body())
        } else {
            Ok(())
        }
    }
}

/// Pieces of a body, gathered until they are worth a look.
struct UploadBuffer {
    buffer: BytesMut,
    buffer_bytes: usize,
    reader: FormReader,
}

impl UploadBuffer {
    fn new(reader: FormReader, content_length: Option<usize>) -> UploadBuffer {
        let small = content_length.filter(|length| (1..=SMALL_UPLOAD_BYTES_MAX).contains(length));
        UploadBuffer {
            buffer: BytesMut::new(),
            buffer_bytes: small.unwrap_or(BUFFER_BYTES),
            reader,
        }
    }

    fn push(&mut self, mut piece: Bytes) -> Result<(), FormError> {
        while !piece.is_empty() {
            if self.buffer.capacity() == 0 {
                self.buffer = BytesMut::with_capacity(self.buffer_bytes);
            }
            let free = self.buffer.capacity() - self.buffer.len();
            let fits = piece.split_to(piece.len().min(free));
            self.buffer.extend_from_slice(&fits);
            if self.buffer.len() >= PARSE_BATCH_BYTES || self.buffer.len() == self.buffer.capacity()
            {
                self.parse_buffered()?;
            }
        }
        Ok(())
    }

    fn parse_buffered(&mut self) -> Result<(), FormError> {
        self.reader.push(self.buffer.split().freeze())
    }

    fn finish(mut self) -> Result<Form, FormError> {
        self.parse_buffered()?;
        self.reader.finish()
    }
}

/// Why a form was not read.
enum FormReadError {
    Form(FormError),
    Refused(ApiError),
}

impl From<FormError> for FormReadError {
    fn from(fault: FormError) -> FormReadError {
        FormReadError::Form(fault)
    }
}

impl From<ApiError> for FormReadError {
    fn from(refusal: ApiError) -> FormReadError {
        FormReadError::Refused(refusal)
    }
}

/// Reads a form, as fast as there is room for it.
async fn read_form(
    gateway: &Gateway,
    mut payer: PayingAccount<'_>,
    mut pieces: BodyPieces<'_>,
    mut buffer: UploadBuffer,
    mut timing: UploadTiming,
) -> Result<(Form, UploadPermit), FormReadError> {
    let uploads = &gateway.upload_budget;
    let (mut permit, mut bytes) = (uploads.empty_permit(&payer.caller.tenant), 0);
    let mut watch = BodyWatch::new(&gateway.slow_bodies, Resource::UploadBytes);
    loop {
        let began = Instant::now();
        let mut next = std::pin::pin!(pieces.next());
        let piece = loop {
            let wait = timing.time_left(began.elapsed()).min(SLOW_AFTER);
            tokio::select! {
                biased;
                piece = tokio::time::timeout(wait, &mut next) => if let Ok(piece) = piece {
                    break piece?;
                },
                () = watch.wait_for_eviction() => return Err(request_body::reject_evicted().into()),
            }
            timing.check_rate(bytes, began.elapsed(), uploads)?;
        };
        let Some(piece) = piece else { break };
        bytes += piece.len();
        watch.record(bytes);
        payer.check_balance(gateway, bytes).await?;
        timing.check_rate(bytes, began.elapsed(), uploads)?;
        timing.client_time += began.elapsed();
        timing.client_rate.record(bytes, timing.client_time);
        let began = Instant::now();
        while !permit.covers(bytes) {
            let left = timing.permit_timeout.saturating_sub(timing.permit_time);
            let grown = tokio::time::timeout(left, permit.acquire_more(uploads)).await;
            grown.map_err(|_| ApiError::from(CapacityError::TooManyUploads))?;
            timing.permit_since.get_or_insert((timing.client_time, bytes));
        }
        let waited = began.elapsed();
        timing.permit_time += waited;
        watch.pause(waited);
        buffer.push(piece)?;
    }
    Ok((buffer.finish()?, permit))
}

/// A form with a file.
struct FileForm {
    /// The file's field.
    field: &'static str,
    /// Bytes of the file, at most.
    file_bytes_max: usize,
    /// Bytes of everything else, at most.
    fields_bytes_max: usize,
}

/// Takes in an image to be edited, with what is to become of it. It never touches a disk.
///
/// # Errors
/// It is no form, or an unsound one; its file is too large; it did not come whole and in time; or
/// there was no room for it.
pub(super) async fn read_image_edit(
    gateway: &Gateway,
    session: &mut Session,
    payer: PayingAccount<'_>,
) -> Result<RequestBody, ApiError> {
    let wanted = FileForm {
        field: "image",
        file_bytes_max: gateway.limits.image_bytes_max,
        fields_bytes_max: FORM_FIELDS_BYTES_MAX,
    };
    let (form, room) = wanted.read(gateway, session, payer).await?;
    let (document, file) = images::parse_edit_form(form)?;
    let catalogue = gateway.catalogue.load();
    let edited =
        ParsedBody::from_form(document, Some(file), catalogue.default_model(ModelKind::Image));
    Ok(finish_body(gateway, edited?, room))
}

/// Takes in what is to become a video, maybe with an image that it begins with.
///
/// # Errors
/// See [`read_image_edit`].
pub(super) async fn read_video(
    gateway: &Gateway,
    session: &mut Session,
    payer: PayingAccount<'_>,
) -> Result<RequestBody, ApiError> {
    let bytes_max = gateway.limits.video_image_bytes_max;
    // The image may come as a data URI instead, which is a text.
    let rest_bytes_max = FORM_FIELDS_BYTES_MAX.saturating_add(bytes_max.saturating_mul(2));
    let wanted = FileForm {
        field: "input_reference",
        file_bytes_max: bytes_max,
        fields_bytes_max: rest_bytes_max,
    };
    let (form, room) = wanted.read(gateway, session, payer).await?;
    let (document, file) = videos::parse_form(form)?;
    let opened = ParsedBody::from_form(document, file, None)?;
    Ok(finish_body(gateway, opened, room))
}

fn finish_body(gateway: &Gateway, opened: ParsedBody, mut room: UploadPermit) -> RequestBody {
    let file_bytes = opened.file.as_ref().map_or(0, |file| file.length);
    room.release_surplus(
        file_bytes.saturating_add(opened.document.body().len()),
        &gateway.upload_budget,
    );
    RequestBody { parsed: opened, upload_permit: Some(room), budget_permit: None }
}

impl FileForm {
    async fn read(
        &self,
        gateway: &Gateway,
        session: &mut Session,
        mut payer: PayingAccount<'_>,
    ) -> Result<(Form, UploadPermit), ApiError> {
        let kind = session.get_header(CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let limits = FormLimits {
            parts_max: PARTS_MAX,
            text_bytes_max: self.fields_bytes_max,
            file_bytes_max: self.file_bytes_max,
        };
        let fault = |fault| self.form_error(fault);
        let reader = FormReader::new(kind.unwrap_or_default(), limits).map_err(fault)?;
        let most = self.file_bytes_max.saturating_add(self.fields_bytes_max);
        let content_length =
            request_body::accept_body_headers(gateway, session, &mut payer, most).await;
        let content_length = content_length.map_err(|why| match why {
            ApiError::Request(RequestError::BodyTooLarge(_)) => {
                ApiError::Request(RequestError::FileTooLarge(self.field, self.file_bytes_max))
            }
            other => other,
        })?;
        let pieces = request_body::body_pieces(session, most);
        let client = body_budget::BodyRate::new(&gateway.limits, &gateway.timeouts);
        let timing = UploadTiming::new(gateway.timeouts.body, client);
        let buffer = UploadBuffer::new(reader, content_length);
        read_form(gateway, payer, pieces, buffer, timing).await.map_err(|why| match why {
            FormReadError::Form(fault) => self.form_error(fault),
            FormReadError::Refused(refusal) => refusal,
        })
    }

    fn form_error(&self, fault: FormError) -> ApiError {
        match fault {
            FormError::FileTooLarge { most, .. } => {
                ApiError::Request(RequestError::FileTooLarge(self.field, most))
            }
            FormError::TextTooLarge(most) => ApiError::Request(RequestError::BodyTooLarge(most)),
            unsound => crate::dialect::CallError::from(unsound).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::gateway::tenant_budget::{TenantId, TenantTable};
    use crate::ledger::AccountName;

    fn tenant(name: &str) -> Arc<Tenant> {
        let table: Arc<TenantTable> = Arc::default();
        table.tenant(TenantId::Account(AccountName::parse(name).expect("a name")))
    }

    /// An upload that has read so many steps.
    async fn room(uploads: &UploadBudget, steps: usize) -> UploadPermit {
        room_of(uploads, &tenant("one"), steps).await
    }

    async fn room_of(uploads: &UploadBudget, tenant: &Arc<Tenant>, steps: usize) -> UploadPermit {
        let mut room = uploads.empty_permit(tenant);
        for _ in 0..steps {
            room.acquire_more(uploads).await;
        }
        room
    }

    #[tokio::test]
    async fn who_finds_no_room_gets_what_is_set_apart_and_the_next_waits() {
        let uploads = UploadBudget::new(10 * STEP_BYTES, 6 * STEP_BYTES, 0);
        let first = room(&uploads, 4).await;
        assert!(first.covers(4 * STEP_BYTES) && !first.covers(4 * STEP_BYTES + 1));
        let mut second = room(&uploads, 1).await;
        assert!(second.covers(6 * STEP_BYTES) && second.units() == 0);
        second.release_surplus(STEP_BYTES, &uploads);
        assert!(second.reserved.is_some(), "there is no other room");
        let mut third = Box::pin(room(&uploads, 2));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(uploads.has_waiters());
        drop(first);
        let third = third.await;
        assert!(!uploads.has_waiters());
        assert!(third.covers(2 * STEP_BYTES) && third.reserved.is_none());
        second.release_surplus(STEP_BYTES, &uploads);
        assert!(second.reserved.is_none() && second.units() == STEP_UNITS as usize);
        drop((second, third));
        assert_eq!(uploads.semaphore.available_permits(), 4 * STEP_UNITS as usize);
        assert!(uploads.reserved.try_lock().is_ok());
    }

    /// Two that have all of the room between them, and need more, must not wait for each other.
    #[tokio::test]
    async fn uploads_that_share_the_room_can_all_end() {
        let uploads = UploadBudget::new(8 * STEP_BYTES, 6 * STEP_BYTES, 0);
        let [mut one, mut other] = [room(&uploads, 1).await, room(&uploads, 1).await];
        one.acquire_more(&uploads).await;
        assert!(one.covers(6 * STEP_BYTES) && one.units() == 0);
        other.acquire_more(&uploads).await;
        assert!(other.covers(2 * STEP_BYTES) && other.reserved.is_none());
    }

    #[tokio::test]
    async fn what_is_not_needed_goes_back() {
        let uploads = UploadBudget::new(10 * STEP_BYTES, 6 * STEP_BYTES, 0);
        let mut room = room(&uploads, 3).await;
        room.release_surplus(STEP_BYTES + 1, &uploads);
        assert_eq!(room.units(), STEP_UNITS as usize + 1);
        room.release_surplus(10 * STEP_BYTES, &uploads);
        room.release_surplus(0, &uploads);
        assert_eq!(room.units(), 0);
        assert!(room.covers(UNCOUNTED_BYTES_MAX) && !room.covers(UNCOUNTED_BYTES_MAX + 1));
    }

    /// However many uploads an account has, one of another account waits behind one of them.
    #[tokio::test]
    async fn one_account_with_many_uploads_leaves_room_to_others() {
        let most = ACCOUNT_BYTES_MIN / STEP_BYTES;
        let uploads =
            UploadBudget::new((2 * most + 6) * STEP_BYTES, 6 * STEP_BYTES, ACCOUNT_BYTES_MIN);
        let (greedy, other) = (tenant("greedy"), tenant("other"));
        let first = room_of(&uploads, &greedy, most).await;
        let apart = room_of(&uploads, &greedy, 1).await;
        assert!(first.reserved.is_none() && apart.reserved.is_some());
        let mut waiting: Vec<_> = (0..9).map(|_| Box::pin(room_of(&uploads, &greedy, 1))).collect();
        for room in &mut waiting {
            assert!(room.as_mut().now_or_never().is_none(), "its account has its share");
        }
        assert_eq!(uploads.waiting.load(Ordering::Relaxed), 1);
        let small = room_of(&uploads, &other, most).now_or_never();
        let small = small.expect("there is room for who has little");
        let mut large = Box::pin(room_of(&uploads, &other, 1));
        assert!(large.as_mut().now_or_never().is_none());
        drop(apart);
        let next = waiting[0].as_mut().now_or_never().expect("it is its turn");
        assert!(next.reserved.is_some());
        assert!(waiting[1].as_mut().now_or_never().is_none());
        drop(next);
        let large = large.now_or_never().expect("it is the next, before the rest of the others");
        assert!(large.reserved.is_some());
        assert!(waiting[1].as_mut().now_or_never().is_none());
        drop((first, small, large));
    }
}
