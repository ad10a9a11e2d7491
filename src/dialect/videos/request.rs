//! A call for a video, as it was read.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::money::VideoResolution;

/// What a call asks for, as far as it bears on the price and on the vendor's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VideoRequest {
    /// The length.
    pub seconds: u64,
    /// What it is sold as.
    pub resolution: VideoResolution,
    /// The aspect ratio that the vendor is told; `None` leaves it to the start frame.
    pub aspect_ratio: Option<&'static str>,
    /// `<width>x<height>`, as the job tells it.
    pub size: String,
    /// The field that says the resolution.
    pub resolution_field: &'static str,
    /// Whether the video is to have sound.
    pub audio: bool,
}

impl VideoRequest {
    /// What is wrong if the model is sold in these resolutions only.
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
