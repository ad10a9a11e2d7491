//! The shape of a video: the sizes that clients may name, and the resolutions and aspect ratios
//! that a vendor gets.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::call::fields::{invalid_value, non_null_member};
use crate::dialect::json::JsonDocument;
use crate::money::VideoResolution::{self, P480, P720, P1080};

/// The shape that a call asks for.
pub(super) struct VideoShape {
    pub(super) resolution: VideoResolution,
    pub(super) aspect_ratio: Option<&'static str>,
    pub(super) size: String,
    pub(super) resolution_field: &'static str,
}

/// The name of an aspect ratio, with its width and height.
type AspectRatio = (&'static str, (u64, u64));

const WIDE: AspectRatio = ("16:9", (16, 9));
const TALL: AspectRatio = ("9:16", (9, 16));
const SQUARE: AspectRatio = ("1:1", (1, 1));

/// All aspect ratios that a vendor may get (spec).
const RATIOS: [AspectRatio; 7] =
    [WIDE, TALL, SQUARE, ("4:3", (4, 3)), ("3:4", (3, 4)), ("3:2", (3, 2)), ("2:3", (2, 3))];

/// All sizes that a client may name (spec).
const SIZES: [(&str, (VideoResolution, &str)); 9] = [
    ("1280x720", (P720, WIDE.0)),
    ("720x1280", (P720, TALL.0)),
    ("720x720", (P720, SQUARE.0)),
    ("854x480", (P480, WIDE.0)),
    ("480x854", (P480, TALL.0)),
    ("480x480", (P480, SQUARE.0)),
    ("1920x1080", (P1080, WIDE.0)),
    ("1080x1920", (P1080, TALL.0)),
    ("1080x1080", (P1080, SQUARE.0)),
];

/// Parses the fields of the shape. `size` takes precedence over `resolution` and `aspect_ratio`,
/// which must be valid all the same. If a call has a start frame but neither `size` nor
/// `aspect_ratio`, the vendor uses the aspect ratio of the frame.
pub(super) fn parse_shape(
    document: &JsonDocument,
    has_frame: bool,
) -> Result<VideoShape, CallError> {
    let size = read_choice(document, "size", &SIZES)?;
    let sold = VideoResolution::ALL.map(|resolution| (resolution.name(), resolution));
    let resolution = read_choice(document, "resolution", &sold)?;
    let ratio = read_choice(document, "aspect_ratio", &RATIOS)?;
    if let Some((name, (resolution, ratio))) = size {
        let (ratio, size) = (Some(ratio), name.to_owned());
        return Ok(VideoShape { resolution, aspect_ratio: ratio, size, resolution_field: "size" });
    }
    let resolution = resolution.map_or(P720, |(_, resolution)| resolution);
    let (name, (width, height)) = ratio.unwrap_or(WIDE);
    let sends_aspect_ratio = ratio.is_some() || !has_frame;
    Ok(VideoShape {
        resolution,
        aspect_ratio: sends_aspect_ratio.then_some(name),
        size: frame_size(resolution, width, height),
        resolution_field: "resolution",
    })
}

/// Returns the size as `<width>x<height>`: the shorter side is that of the resolution, the longer
/// side is the even number nearest to the ratio.
fn frame_size(resolution: VideoResolution, width: u64, height: u64) -> String {
    let short = match resolution {
        P480 => 480,
        P720 => 720,
        P1080 => 1_080,
    };
    let (most, least) = (width.max(height), width.min(height));
    let long = (short * most + least) / (2 * least) * 2;
    if width >= height { format!("{long}x{short}") } else { format!("{short}x{long}") }
}

/// Reads a field that must have one of the known values; `None` if it is absent or null.
fn read_choice<T: Copy>(
    document: &JsonDocument,
    field: &str,
    known: &[(&'static str, T)],
) -> Result<Option<(&'static str, T)>, CallError> {
    let Some(value) = non_null_member(document, field) else { return Ok(None) };
    let text = value.text();
    let found = known.iter().find(|(name, _)| text.as_deref() == Some(*name)).copied();
    found.map(Some).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        invalid_value(field, &format!("one of {}", names.join(", ")), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn every_size_that_has_a_name_is_that_of_its_resolution_and_ratio() {
        for (name, (resolution, ratio)) in SIZES {
            let (_, (width, height)) =
                RATIOS.into_iter().find(|(name, _)| *name == ratio).expect("known");
            assert_eq!(frame_size(resolution, width, height), name);
        }
    }

    #[test]
    fn every_ratio_is_what_its_name_says() {
        for (name, (width, height)) in RATIOS {
            assert_eq!(name, format!("{width}:{height}"));
        }
    }

    #[rstest]
    #[case::p480_4_3(P480, 4, 3, "640x480")]
    #[case::p480_3_4(P480, 3, 4, "480x640")]
    #[case::p480_3_2(P480, 3, 2, "720x480")]
    #[case::p720_4_3(P720, 4, 3, "960x720")]
    #[case::p720_2_3(P720, 2, 3, "720x1080")]
    #[case::p1080_3_4(P1080, 3, 4, "1080x1440")]
    #[case::p1080_3_2(P1080, 3, 2, "1620x1080")]
    fn other_shapes_keep_the_shorter_side(
        #[case] resolution: VideoResolution,
        #[case] width: u64,
        #[case] height: u64,
        #[case] expected: &str,
    ) {
        assert_eq!(frame_size(resolution, width, height), expected);
    }
}
