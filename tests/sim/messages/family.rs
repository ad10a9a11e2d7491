//! The models, and the habits by which they differ.

/// A model, whatever stands before its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Family {
    name: &'static str,
    age: Age,
}

/// Models of one age have the same habits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    Oldest,
    Older,
    Newer,
    Newest,
}

const FAMILIES: [Family; 9] = [
    Family { name: "fable-5", age: Age::Newest },
    Family { name: "opus-5", age: Age::Newest },
    Family { name: "sonnet-5", age: Age::Newest },
    Family { name: "opus-4-8", age: Age::Newer },
    Family { name: "opus-4-7", age: Age::Newer },
    Family { name: "opus-4-6", age: Age::Older },
    Family { name: "sonnet-4-6", age: Age::Older },
    Family { name: "haiku-4-5", age: Age::Oldest },
    Family { name: "sonnet-4-5", age: Age::Oldest },
];

impl Family {
    /// The model of a name such as `lma-opus-5`, which may have a day at its end.
    pub(super) fn of(model: &str) -> Option<&'static Family> {
        let name = model.split_once('-')?.1;
        FAMILIES.iter().find(|family| {
            name.strip_prefix(family.name).is_some_and(|rest| rest.is_empty() || is_day(rest))
        })
    }

    /// Whether it thinks unasked.
    pub(super) fn thinks(&self) -> bool {
        self.age == Age::Newest
    }

    /// Whether it takes temperature and its like.
    pub(super) fn samples(&self) -> bool {
        self.age <= Age::Older
    }

    /// Whether it knows `output_config.effort`.
    pub(super) fn knows_effort(&self) -> bool {
        self.age >= Age::Older
    }

    /// Whether it goes on with an assistant's turn.
    pub(super) fn takes_prefill(&self) -> bool {
        self.age == Age::Oldest
    }

    /// Whether it takes instructions in the midst of a conversation.
    pub(super) fn takes_instructions_midway(&self) -> bool {
        self.age == Age::Newest || self.name == "opus-4-8"
    }

    /// Whether it can be made to call a tool.
    pub(super) fn can_be_forced(&self) -> bool {
        self.name != "fable-5"
    }

    /// The most tokens of a reply.
    pub(super) fn output_max(&self) -> u64 {
        if self.age == Age::Oldest { 64_000 } else { 128_000 }
    }
}

/// Whether this is a day such as -20260131.
fn is_day(text: &str) -> bool {
    let day = text.strip_prefix('-');
    day.is_some_and(|day| day.len() == 8 && day.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_the_end_of_its_name() {
        for (model, name) in [
            ("lma-opus-5", Some("opus-5")),
            ("brand-opus-5", Some("opus-5")),
            ("lma-sonnet-4-5-20250929", Some("sonnet-4-5")),
            ("opus-5", None),
            ("lma-opus-5-mini", None),
            ("lma-opus-4-5", None),
            ("lmb-5.5", None),
        ] {
            assert_eq!(Family::of(model).map(|family| family.name), name, "{model}");
        }
    }
}
