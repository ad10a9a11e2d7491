//! The error bodies of the vendors, each in the shape of its own.

use super::refusal::Refusal;
use super::usage::quoted;
use super::vendor::Vendor;

/// The body of an error; without a message, what the vendor would say.
pub(super) fn body(vendor: Vendor, serial: u64, refusal: &Refusal) -> String {
    let status = refusal.status;
    let message = quoted(message(vendor, refusal));
    match vendor {
        Vendor::A => {
            let error = format!(r#"{{"type":"{}","message":{message}}}"#, kind_of_a(status));
            format!(r#"{{"type":"error","error":{error},"request_id":"req_vendor_{serial}"}}"#)
        }
        Vendor::B => {
            let (kind, usual_code) = kind_of_b(status);
            let param = refusal.param.as_deref().map_or_else(|| "null".to_owned(), quoted);
            let code = refusal.code.map_or_else(|| usual_code.to_owned(), quoted);
            format!(
                r#"{{"error":{{"message":{message},"type":"{kind}","param":{param},"code":{code}}}}}"#
            )
        }
        Vendor::C => format!(
            r#"[{{"error":{{"code":{status},"message":{message},"status":"{}"}}}}]"#,
            kind_of_c(status)
        ),
        Vendor::D => format!(r#"{{"code":"{}","error":{message}}}"#, kind_of_d(status)),
        Vendor::E => format!(r#"{{"error":{{"message":{message}}}}}"#),
    }
}

/// The data of the error that comes as this event of a response.
pub(super) fn within_response(sequence: usize) -> String {
    let message = quoted(usual_message(Vendor::B, 500));
    let error = format!(r#""code":"server_error","message":{message},"param":null"#);
    format!(r#"{{"type":"error",{error},"sequence_number":{sequence}}}"#)
}

/// The words which follow a status in the first line of an answer.
pub(super) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        302 => "Found",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Payload Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        529 => "Overloaded",
        _ => "Status",
    }
}

fn message(vendor: Vendor, refusal: &Refusal) -> &str {
    refusal.message.as_deref().unwrap_or_else(|| usual_message(vendor, refusal.status))
}

fn usual_message(vendor: Vendor, status: u16) -> &'static str {
    match (status, vendor) {
        (401, Vendor::A) => "invalid x-api-key",
        (402, Vendor::A) => "The credit balance of organization org-sim-account is too low.",
        (404, Vendor::A) => "Not Found",
        (405, Vendor::A) => "Method Not Allowed",
        (413, Vendor::A) => "Request exceeds the maximum size",
        (429, Vendor::A) => {
            "This request would exceed the rate limit of organization org-sim-account: 10000 RPM."
        }
        (529, Vendor::A) => "Overloaded",
        (500.., Vendor::A) => "Internal server error",
        (401, _) => "Incorrect API key provided: vk-****oret.",
        (404, _) => "The model or path does not exist or you do not have access to it.",
        // It names the account, as the real one does: nothing of it may reach a client.
        (429, Vendor::B) => "Rate limit reached in organization org-sim-account: 10000 RPM.",
        (429, Vendor::E) => "Model busy, retry later",
        (429, _) => "Resource has been exhausted, check the quota of team sim-account.",
        (500.., _) => "The server had an error while processing your request.",
        _ => "The request is invalid.",
    }
}

fn kind_of_a(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

fn kind_of_b(status: u16) -> (&'static str, &'static str) {
    match status {
        401 => ("invalid_request_error", r#""invalid_api_key""#),
        402 => ("insufficient_quota", r#""insufficient_quota""#),
        404 => ("invalid_request_error", r#""model_not_found""#),
        429 => ("requests", r#""rate_limit_exceeded""#),
        500.. => ("server_error", "null"),
        _ => ("invalid_request_error", "null"),
    }
}

fn kind_of_c(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        500 => "INTERNAL",
        504 => "DEADLINE_EXCEEDED",
        501.. => "UNAVAILABLE",
        _ => "INVALID_ARGUMENT",
    }
}

fn kind_of_d(status: u16) -> &'static str {
    match status {
        401 => "unauthenticated",
        403 => "permission-denied",
        404 => "not-found",
        429 => "resource-exhausted",
        500.. => "internal-error",
        _ => "invalid-argument",
    }
}
