//! A parsed call for a video.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::money::VideoResolution;

/// The fields of a call that bear on the price and on the vendor's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VideoRequest {
    /// The length of the video in seconds.
    pub seconds: u64,
    /// The resolution, which decides the price.
    pub resolution: VideoResolution,
    /// The aspect ratio that the vendor gets; `None` if the vendor uses that of the start frame.
    pub aspect_ratio: Option<&'static str>,
    /// The size as `<width>x<height>`, as it is shown in the job.
    pub size: String,
    /// The field that an error about the resolution names: `size` or `resolution`.
    pub resolution_field: &'static str,
    /// Whether the video has sound.
    pub audio: bool,
}

impl VideoRequest {
    /// Returns the error for a model that is sold only in the resolutions `sold`.
    #[must_use]
    pub(crate) fn unsupported_resolution(
        &self,
        model: &str,
        sold: &[VideoResolution],
    ) -> CallError {
        let sold: Vec<_> = sold.iter().map(|resolution| resolution.name()).collect();
        let expected = format!(
            "of a resolution that '{model}' makes ({}), not of {}",
            sold.join(", "),
            self.resolution.name()
        );
        CallError::invalid(self.resolution_field, &expected)
    }
}
