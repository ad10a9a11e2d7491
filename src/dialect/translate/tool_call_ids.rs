//! Assigns the ids of tool calls: an id has only letters, digits, `_` and `-`, and no two calls
//! have the same id.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{HashMap, HashSet};

/// Maps the client's ids of tool calls to the ids that the vendor gets.
#[derive(Default)]
pub(super) struct ToolCallIds {
    /// For each of the client's ids, the vendor id that it was last assigned.
    assigned: HashMap<String, String>,
    used: HashSet<String>,
    /// For each cleaned id, the last suffix that was tried.
    base_counts: HashMap<String, u64>,
}

impl ToolCallIds {
    /// Assigns the id of a call in a new turn: the preferred one if it is valid and unused. A
    /// client's id that occurs again in a later turn gets another one.
    pub(super) fn assign_id(&mut self, id: &str, preferred_id: &str) -> String {
        let name = self.make_unique(preferred_id);
        self.assigned.insert(id.to_owned(), name.clone());
        name
    }

    /// Returns the vendor id of the call that a result belongs to; assigns one if the call is
    /// unknown.
    pub(super) fn id_for_result(&mut self, id: &str, preferred_id: &str) -> String {
        match self.assigned.get(id) {
            Some(name) => name.clone(),
            None => self.assign_id(id, preferred_id),
        }
    }

    fn make_unique(&mut self, id: &str) -> String {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let clean: String = id.chars().map(|c| if fits(c) { c } else { '_' }).collect();
        let count = self.base_counts.entry(clean.clone()).or_insert(0);
        loop {
            *count += 1;
            let name = if *count == 1 { clean.clone() } else { format!("{clean}_{count}") };
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ToolCallIds;

    #[test]
    fn ids_fit_stay_apart_and_lead_from_results_to_calls() {
        let mut ids = ToolCallIds::default();
        let cases = [
            (true, "call.2", "call.2", "call_2"),
            (true, "call_2", "call_2", "call_2_2"),
            (false, "call.2", "call.2", "call_2"),
            (false, "call_2", "call_2", "call_2_2"),
            (true, "call.2", "call.2", "call_2_3"),
            (false, "call.2", "call.2", "call_2_3"),
            (false, "never called", "never called", "never_called"),
            (false, "never called", "never called", "never_called"),
            (true, "\u{0}3", "call_2", "call_2_4"),
            (false, "\u{0}3", "call_2", "call_2_4"),
            (false, "call_2", "call_2", "call_2_2"),
        ];
        for (calls, id, wish, name) in cases {
            let named = if calls { ids.assign_id(id, wish) } else { ids.id_for_result(id, wish) };
            assert_eq!(named, name, "{id}");
        }
    }
}
