//! Starts what sends traces, as the section `[traces]` says.

use std::sync::Arc;

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderValue};

use crate::conf::TracesSection;
use crate::gateway::upstream::vendor_key;
use crate::traces::sampler::Sampler;
use crate::traces::tracer::{ExporterConfig, ProcessIdentity, Tracer};

/// Starts the thread that sends traces; `None` if nothing is to be traced.
///
/// # Errors
/// A header has no value or one that cannot be sent, or TLS cannot be set up.
pub(super) fn start_tracer(section: &TracesSection) -> anyhow::Result<Option<Arc<Tracer>>> {
    let Some(endpoint) = section.endpoint.clone().filter(|_| section.sample_ratio > 0.0) else {
        return Ok(None);
    };
    let exporter = ExporterConfig {
        endpoint,
        headers: read_headers(section)?,
        timeout: section.timeout,
        identity: ProcessIdentity {
            service_name: section.service_name.clone(),
            instance_id: uuid::Uuid::now_v7().to_string(),
            attributes: section.attributes.clone(),
        },
    };
    let sampler = Sampler { ratio: section.sample_ratio, callers: section.callers };
    Tracer::start(sampler, exporter).map(Some).context("cannot send traces")
}

fn read_headers(section: &TracesSection) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, source) in &section.headers {
        let value = vendor_key::read_key(source)
            .with_context(|| format!("traces.headers: no {source:?} for {name}"))?;
        let Ok(mut value) = HeaderValue::try_from(value) else {
            bail!("traces.headers: the value of {name} has characters that no header can carry");
        };
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    Ok(headers)
}
