//! Why a vendor does not take a request.

/// A status, and what the vendor says with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// Without it, the vendor says what it usually says.
    pub(super) message: Option<String>,
    /// The member of the request that is wrong, where the vendor names it.
    pub(super) param: Option<String>,
    /// In the place of the usual code of the status.
    pub(super) code: Option<&'static str>,
}

impl Refusal {
    pub(super) fn new(status: u16, message: impl Into<String>) -> Refusal {
        Refusal { status, message: Some(message.into()), ..Refusal::default() }
    }

    /// With the message that is usual.
    pub(super) fn usual(status: u16) -> Refusal {
        Refusal { status, ..Refusal::default() }
    }

    /// Names the member that is wrong.
    pub(super) fn at(self, param: &str) -> Refusal {
        Refusal { param: Some(param.to_owned()), ..self }
    }

    pub(super) fn coded(self, code: &'static str) -> Refusal {
        Refusal { code: Some(code), ..self }
    }
}
