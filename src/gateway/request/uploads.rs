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

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use pingora::proxy::Session;

use crate::catalogue::ModelKind;
use crate::dialect::call::ParsedBody;
use crate::dialect::form::{Form, FormError, FormLimits, FormReader};
use crate::dialect::{images, videos};
use crate::gateway::api_error::{ApiError, CapacityError, RequestError};
use crate::gateway::budgets::bodies;
use crate::gateway::budgets::slow_bodies::BodyWatch;
use crate::gateway::budgets::tenants::Resource;
use crate::gateway::budgets::uploads::{FORM_FIELDS_BYTES_MAX, UploadBudget, UploadPermit};
use crate::gateway::request::body;
use crate::gateway::request::body::{BodyPieces, PayingAccount, RequestBody};
use crate::gateway::state::Gateway;

/// Parts of a form, at most.
const PARTS_MAX: usize = 16;
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

/// How long an upload takes.
struct UploadTiming {
    /// For waiting for room.
    permit_timeout: Duration,
    /// For the client.
    client_rate: bodies::BodyRate,
    permit_time: Duration,
    client_time: Duration,
    /// How long the client had been waited for, and how much had come, when it first took room.
    permit_since: Option<(Duration, usize)>,
}

impl UploadTiming {
    fn new(permit_timeout: Duration, client_rate: bodies::BodyRate) -> UploadTiming {
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
            Err(body::reject_slow_body())
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
                () = watch.wait_for_eviction() => return Err(body::reject_evicted().into()),
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
pub(crate) async fn read_image_edit(
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
pub(crate) async fn read_video(
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
        let content_length = body::accept_body_headers(gateway, session, &mut payer, most).await;
        let content_length = content_length.map_err(|why| match why {
            ApiError::Request(RequestError::BodyTooLarge(_)) => {
                ApiError::Request(RequestError::FileTooLarge(self.field, self.file_bytes_max))
            }
            other => other,
        })?;
        let pieces = body::body_pieces(session, most);
        let client = bodies::BodyRate::new(&gateway.limits, &gateway.timeouts);
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
