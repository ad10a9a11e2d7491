//! What each fuzz target does with some bytes: it panics if something is wrong.

use super::super::translation::checker;

pub(crate) mod embeddings;
pub(crate) mod form;
pub(crate) mod head;
pub(crate) mod relay;
pub(crate) mod rules;
pub(crate) mod sse;
pub(crate) mod strict_scan;
pub(crate) mod translate_reply;
pub(crate) mod translate_request;
pub(crate) mod videos;
