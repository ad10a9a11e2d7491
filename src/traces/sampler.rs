//! The choice of the calls that are traced.

use super::context::CallerSpan;

/// What the span of a caller means for that of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerTraces {
    /// A call begins a trace of its own, which has a link to the caller's span.
    Link,
    /// A call goes on with the trace of its caller, unless the caller does not record it.
    Continue,
}

/// Chooses the calls that are traced.
///
/// A caller never makes the gateway trace more than the ratio of its calls: what a customer sends
/// must not decide what the operator's collector costs. So the ratio is applied to a number of our
/// own, not to the caller's id of the trace, and a caller's flag can only take a call out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampler {
    /// The share of calls that are traced, from 0 to 1.
    pub ratio: f64,
    /// What the span of a caller means.
    pub callers: CallerTraces,
}

impl Sampler {
    /// Whether a call is chosen, by a random number of its own.
    #[must_use]
    pub(crate) fn chooses(&self, random: u32) -> bool {
        /// How many values the number can have.
        const RANGE: f64 = 4_294_967_296.0;
        f64::from(random) < self.ratio * RANGE
    }

    /// Whether the caller wants a call that was chosen not to be traced.
    #[must_use]
    pub(crate) fn is_declined(&self, caller: Option<&CallerSpan>) -> bool {
        self.callers == CallerTraces::Continue
            && caller.is_some_and(|caller| !caller.context.is_sampled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::context::SpanContext;

    #[test]
    fn a_ratio_is_the_share_of_numbers_that_are_chosen() {
        let chosen = |ratio: f64, random: u32| {
            Sampler { ratio, callers: CallerTraces::Link }.chooses(random)
        };
        assert!(chosen(1.0, 0) && chosen(1.0, u32::MAX));
        assert!(!chosen(0.0, 0) && !chosen(0.0, u32::MAX));
        let tenth = u32::MAX / 10;
        assert!(chosen(0.1, tenth) && !chosen(0.1, tenth + 1));
    }

    #[test]
    fn a_caller_can_take_its_call_out_of_its_own_trace_and_never_in() {
        let context = |is_sampled| SpanContext { trace_id: [1; 16], span_id: [1; 8], is_sampled };
        let caller = |flag| CallerSpan { context: context(flag), state: String::new() };
        let sampler = |callers| Sampler { ratio: 0.0, callers };
        let (linked, continued) = (sampler(CallerTraces::Link), sampler(CallerTraces::Continue));
        assert!(!linked.is_declined(Some(&caller(false))) && !linked.is_declined(None));
        assert!(continued.is_declined(Some(&caller(false))) && !continued.is_declined(None));
        assert!(!continued.is_declined(Some(&caller(true))));
        // Nothing of a caller goes into the choice itself.
        assert!(!continued.chooses(0));
    }
}
