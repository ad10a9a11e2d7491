//! The error bodies of the vendors, each in the shape of its own.

use super::refusal::Refusal;
use super::usage::quoted;
use super::vendor::Vendor;

/// What `vendor_c` calls the fault of a key that it does not know.
const KEY_INVALID: &str = "API_KEY_INVALID";
/// How `vendor_d` begins such an error.
const KEY_INVALID_OF_D: &str = "Client specified an invalid argument";

/// What a vendor says to a key that it does not know. Two of them do not say it by the status.
pub(super) fn of_key(vendor: Vendor) -> Refusal {
    match vendor {
        Vendor::C => {
            Refusal::new(400, "API key not valid. Please pass a valid API key.").coded(KEY_INVALID)
        }
        Vendor::D => Refusal::new(
            400,
            "Incorrect API key provided: vk***89. You can obtain a key from \
             https://console.vendor.test.",
        )
        .coded(KEY_INVALID_OF_D),
        Vendor::A | Vendor::B | Vendor::E => Refusal::usual(401),
    }
}

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
        Vendor::C => {
            let kind = kind_of_c(status);
            let details = refusal.code.filter(|code| *code == KEY_INVALID);
            let details = details.map_or_else(String::new, |reason| {
                format!(r#","details":[{{"reason":"{reason}","domain":"vendor.test"}}]"#)
            });
            let error =
                format!(r#""code":{status},"message":{message},"status":"{kind}"{details}"#);
            format!(r#"[{{"error":{{{error}}}}}]"#)
        }
        Vendor::D => {
            let code = refusal.code.filter(|code| *code == KEY_INVALID_OF_D);
            let code = code.unwrap_or_else(|| kind_of_d(status));
            format!(r#"{{"code":"{code}","error":{message}}}"#)
        }
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_key_that_is_not_known_is_told_in_the_vendors_own_shape() {
        let told = |vendor| {
            let refusal = of_key(vendor);
            let body: Value = serde_json::from_str(&body(vendor, 1, &refusal)).expect("JSON");
            (refusal.status, body)
        };
        for vendor in [Vendor::A, Vendor::B, Vendor::E] {
            assert_eq!(told(vendor).0, 401, "{vendor:?}");
        }
        let (status, of_c) = told(Vendor::C);
        let error = &of_c[0]["error"];
        assert_eq!((status, &error["status"]), (400, &"INVALID_ARGUMENT".into()));
        assert_eq!(error["details"][0]["reason"], "API_KEY_INVALID");
        let (status, of_d) = told(Vendor::D);
        assert_eq!((status, &of_d["code"]), (400, &KEY_INVALID_OF_D.into()));
        let message = of_d["error"].as_str().expect("a text");
        assert!(message.starts_with("Incorrect API key provided"), "{message}");
    }

    #[test]
    fn other_refusals_of_vendor_c_and_vendor_d_have_no_word_about_keys() {
        let refusal = Refusal::new(400, "Too long.").coded("string_above_max_length");
        let of_c = body(Vendor::C, 1, &refusal);
        assert!(!of_c.contains("details"), "{of_c}");
        let of_d = body(Vendor::D, 1, &refusal);
        assert!(of_d.contains(r#""code":"invalid-argument""#), "{of_d}");
    }
}
