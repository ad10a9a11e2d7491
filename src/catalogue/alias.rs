//! Names of the operator's choice for models, from the key `aliases` of a vendor's section.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TomlValue};

/// A name by which clients may ask for a model, beside the model's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAlias {
    /// The name.
    pub name: String,
    /// The id of the model that the name stands for.
    pub model_id: String,
    /// The place of the name in the configuration.
    pub location: SourceLocation,
}

/// What the key `aliases` of a vendor's section says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AliasSetting {
    /// The names of the table.
    pub(super) aliases: Vec<ModelAlias>,
    /// Whether the key is `true`, the older form of `vendor_names = true`.
    pub(super) allows_vendor_names: bool,
}

impl AliasSetting {
    /// Parses the value of the key: a table of lines such as `"any-name" = "our-id"`, or `true`.
    pub(super) fn parse(node: SpannedValue, faults: &mut Vec<ConfigError>) -> AliasSetting {
        match node.value {
            TomlValue::Bool(allows_vendor_names) => {
                AliasSetting { allows_vendor_names, ..AliasSetting::default() }
            }
            TomlValue::Table(members) => {
                let alias = |(name, node)| parse_alias(name, node, faults);
                let aliases = members.into_iter().filter_map(alias).collect();
                AliasSetting { aliases, ..AliasSetting::default() }
            }
            other => {
                let found = other.kind_name();
                let what = format!("'aliases' must be a table, or true or false, not {found}");
                faults.push(node.location.error(what));
                AliasSetting::default()
            }
        }
    }
}

fn parse_alias(
    name: String,
    node: SpannedValue,
    faults: &mut Vec<ConfigError>,
) -> Option<ModelAlias> {
    let location = node.location;
    let what = match node.value {
        TomlValue::Text(_) if name.is_empty() => "an alias must not be an empty name".to_owned(),
        TomlValue::Text(model_id) if name.contains('*') || model_id.contains('*') => {
            format!("alias '{name}' has a *; an alias is one whole name for one model id")
        }
        TomlValue::Text(model_id) => return Some(ModelAlias { name, model_id, location }),
        // Somebody looks for the switch in the table.
        TomlValue::Bool(_) => format!(
            "alias '{name}' must be the id of a model; beside this table 'vendor_names = true' \
             allows the vendor's own names"
        ),
        other => format!("alias '{name}' must be the id of a model, not {}", other.kind_name()),
    };
    faults.push(location.error(what));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_reader;

    /// Parses a table whose key is `aliases`, and returns the setting and the faults.
    fn parse(text: &str) -> (AliasSetting, Vec<String>) {
        let (node, mut faults) = toml_reader::parse("t.toml", text);
        let TomlValue::Table(mut members) = node.value else { panic!("a table") };
        let (_, node) = members.pop().expect("a member");
        let setting = AliasSetting::parse(node, &mut faults);
        (setting, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_older_switch_still_reads_as_it_did() {
        for is_on in [true, false] {
            let (setting, faults) = parse(&format!("aliases = {is_on}\n"));
            assert_eq!((setting.allows_vendor_names, faults), (is_on, vec![]));
            assert_eq!(setting.aliases, []);
        }
    }

    #[test]
    fn a_table_has_names_with_their_lines() {
        let (setting, faults) = parse("[aliases]\n\"a/b-2025\" = \"x\"\nc = \"x\"\n");
        assert_eq!(faults, Vec::<String>::new());
        assert!(!setting.allows_vendor_names);
        let found =
            setting.aliases.iter().map(|a| format!("{} {} {}", a.name, a.model_id, a.location));
        assert_eq!(found.collect::<Vec<_>>(), ["a/b-2025 x t.toml:2", "c x t.toml:3"]);
    }

    #[test]
    fn what_is_no_alias_is_told_with_its_line() {
        let (setting, faults) =
            parse("[aliases]\naliases = true\n\"\" = \"x\"\n\"a-*\" = \"x-*\"\nb = 1\nc = \"x\"\n");
        assert_eq!(setting.aliases.len(), 1);
        assert_eq!(
            faults,
            [
                "t.toml:2: alias 'aliases' must be the id of a model; beside this table \
                 'vendor_names = true' allows the vendor's own names",
                "t.toml:3: an alias must not be an empty name",
                "t.toml:4: alias 'a-*' has a *; an alias is one whole name for one model id",
                "t.toml:5: alias 'b' must be the id of a model, not a number",
            ]
        );
        let (_, faults) = parse("aliases = [\"x\"]\n");
        assert_eq!(faults, ["t.toml:1: 'aliases' must be a table, or true or false, not a list"]);
    }
}
