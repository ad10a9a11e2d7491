//! How clients are set up, as a part of a page.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::facts;
use crate::console::guide::{GuidePart, SetupGuide, with_key};

/// Draws the guide. The key, if it is known, stands in the lines to copy.
pub(in crate::console) fn draw(guide: &SetupGuide, key: Option<&str>) -> Markup {
    html! {
        (facts(&[("Address", html! { code { (guide.address) } })]))
        @for section in &guide.sections {
            details open[key.is_none()] {
                summary { (section.title) }
                @for part in &section.parts {
                    @match part {
                        GuidePart::Text(text) => p { (text) },
                        GuidePart::Code(lines) => pre tabindex="0" {
                            code { (with_key(lines, key)) }
                        },
                    }
                }
            }
        }
    }
}
