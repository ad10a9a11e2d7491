//! Reads uploads: images to be edited, or with which a video begins. They are as large as all other
//! calls together, so the memory for them is limited. An upload waits while the memory is used up.
//!
//! Memory is acquired as bytes arrive. Uploads that each hold a part of the memory they need could
//! deadlock. Hence enough memory for the largest upload is reserved: the upload that gets the
//! reserve can always finish.
//!
//! Each account has a share of the memory, and only one of its uploads at a time waits for more. So
//! the upload of an account that sends few waits behind at most one upload of each other account,
//! however many the others send.

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

/// A form has at most this many parts.
const PARTS_MAX: usize = 16;
/// While other uploads wait for memory, an upload that holds some must arrive at this rate at
/// least, in bytes per second.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// The minimum rate applies once the client has been waited for during this time since the upload
/// first took memory. It is checked at this interval at least.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// Uploads are collected in buffers of this many bytes, whatever their own size. The allocator
/// keeps such large buffers apart from the memory that it manages per thread, and returns them to
/// the system when they are freed. The part of a buffer that is never written uses no physical
/// memory.
const BUFFER_BYTES: usize = 8 << 20;
/// An upload whose content-length is at most this many bytes gets a buffer of its length.
const SMALL_UPLOAD_BYTES_MAX: usize = 1 << 20;
/// This many bytes are collected before they are parsed: to parse many small pieces one by one
/// would cost more than their bytes.
const PARSE_BATCH_BYTES: usize = 64 << 10;

/// The time limits of an upload, and the time that it has taken so far.
struct UploadTiming {
    /// The total time that an upload may wait for memory.
    permit_timeout: Duration,
    /// The time limits for the client to send the body.
    client_rate: bodies::BodyRate,
    permit_wait_total: Duration,
    client_wait_total: Duration,
    /// `None` until the upload first takes memory.
    first_permit: Option<FirstPermit>,
}

/// The state of an upload when it first took memory.
#[derive(Clone, Copy)]
struct FirstPermit {
    /// The time that the client had been waited for.
    client_wait_total: Duration,
    /// The bytes that had arrived.
    bytes: usize,
}

impl UploadTiming {
    fn new(permit_timeout: Duration, client_rate: bodies::BodyRate) -> UploadTiming {
        let [permit_wait_total, client_wait_total] = [Duration::ZERO; 2];
        UploadTiming {
            permit_timeout,
            client_rate,
            permit_wait_total,
            client_wait_total,
            first_permit: None,
        }
    }

    /// Returns how much longer the client may take to send more. `waited` is the time of the
    /// current wait.
    fn time_left(&self, waited: Duration) -> Duration {
        self.client_rate.deadline().saturating_sub(self.client_wait_total).saturating_sub(waited)
    }

    /// Refuses an upload whose client sends too slowly. While other uploads wait for memory,
    /// [`BYTES_PER_SECOND_MIN`] applies too.
    fn check_rate(
        &self,
        bytes: usize,
        waited: Duration,
        uploads: &UploadBudget,
    ) -> Result<(), ApiError> {
        let too_slow = self.first_permit.filter(|_| uploads.has_waiters()).is_some_and(|first| {
            let waited = (self.client_wait_total + waited).saturating_sub(first.client_wait_total);
            let due = waited.as_secs().saturating_mul(BYTES_PER_SECOND_MIN);
            waited >= SLOW_AFTER && (bytes.saturating_sub(first.bytes) as u64) < due
        });
        if too_slow || self.time_left(waited).is_zero() {
            Err(body::reject_slow_body())
        } else {
            Ok(())
        }
    }
}

/// Collects pieces of a body until there are enough bytes to parse.
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

/// Why a form could not be read.
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

/// Reads a form. While there is no memory for the next piece, nothing more is read from the client.
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
        timing.client_wait_total += began.elapsed();
        timing.client_rate.record(bytes, timing.client_wait_total);
        let began = Instant::now();
        while !permit.covers(bytes) {
            let left = timing.permit_timeout.saturating_sub(timing.permit_wait_total);
            let grown = tokio::time::timeout(left, permit.acquire_more(uploads)).await;
            grown.map_err(|_| ApiError::from(CapacityError::TooManyUploads))?;
            let client_wait_total = timing.client_wait_total;
            timing.first_permit.get_or_insert(FirstPermit { client_wait_total, bytes });
        }
        let waited = began.elapsed();
        timing.permit_wait_total += waited;
        watch.pause(waited);
        buffer.push(piece)?;
    }
    Ok((buffer.finish()?, permit))
}

/// A form with one file, as an endpoint expects it.
struct FileForm {
    /// The name of the field that contains the file.
    field: &'static str,
    /// Bytes of the file, at most.
    file_bytes_max: usize,
    /// Bytes of everything else, at most.
    fields_bytes_max: usize,
}

/// Reads the form of an image edit: the image and the instructions. It is never written to disk.
///
/// # Errors
/// The body is not a valid form, its file is too large, it did not arrive completely and in time,
/// the account has no balance, or there was no memory for it.
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
    let (form, permit) = wanted.read(gateway, session, payer).await?;
    let (document, file) = images::parse_edit_form(form)?;
    let catalogue = gateway.catalogue.load();
    let edited =
        ParsedBody::from_form(document, Some(file), catalogue.default_model(ModelKind::Image));
    Ok(finish_body(gateway, edited?, permit))
}

/// Reads the form of a video order, optionally with an image with which the video begins.
///
/// # Errors
/// See [`read_image_edit`].
pub(crate) async fn read_video(
    gateway: &Gateway,
    session: &mut Session,
    payer: PayingAccount<'_>,
) -> Result<RequestBody, ApiError> {
    let bytes_max = gateway.limits.video_image_bytes_max;
    // The image may come as a data URI in a text field instead, which is longer than the file.
    let rest_bytes_max = FORM_FIELDS_BYTES_MAX.saturating_add(bytes_max.saturating_mul(2));
    let wanted = FileForm {
        field: "input_reference",
        file_bytes_max: bytes_max,
        fields_bytes_max: rest_bytes_max,
    };
    let (form, permit) = wanted.read(gateway, session, payer).await?;
    let (document, file) = videos::parse_form(form)?;
    let opened = ParsedBody::from_form(document, file, None)?;
    Ok(finish_body(gateway, opened, permit))
}

fn finish_body(gateway: &Gateway, opened: ParsedBody, mut permit: UploadPermit) -> RequestBody {
    let file_bytes = opened.file.as_ref().map_or(0, |file| file.length);
    permit.release_surplus(
        file_bytes.saturating_add(opened.document.body().len()),
        &gateway.upload_budget,
    );
    RequestBody { parsed: opened, upload_permit: Some(permit), budget_permit: None }
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
