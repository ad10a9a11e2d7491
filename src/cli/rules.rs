//! Reads the folders of the rules.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::settings::config_error;
use crate::catalogue::{Catalogue, RulesSource, VendorModelNames};
use crate::conf::{Config, RulesSection};
use crate::toml_reader::{ConfigError, SourceLocation};

/// Reads the rules files, those of vendors, of the plans and of the price books, in order of their
/// names. A local file takes the place of the other of its name, as a whole. Fails if a folder or a
/// file cannot be read: without its local files an account would pay other prices.
pub(super) fn read_sources(folders: &RulesSection) -> anyhow::Result<Vec<RulesSource>> {
    let mut files = list_files(&folders.dir)?;
    if let Some(local) = &folders.local {
        let local = list_files(local)?;
        files.retain(|file| !local.iter().any(|other| other.file_name() == file.file_name()));
        files.extend(local);
    }
    files.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    let source = |path: &Path| -> anyhow::Result<RulesSource> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path.display().to_string(), text))
    };
    files.iter().map(|path| source(path)).collect()
}

/// Returns the paths of the rules files in a folder.
fn list_files(folder: &str) -> anyhow::Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read the rules in {folder}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the local files among rules files.
pub(super) fn local_files(folders: &RulesSection, sources: &[RulesSource]) -> Vec<String> {
    let files = sources.iter().map(|(file, _)| file);
    files.filter(|file| folders.is_local(file)).cloned().collect()
}

/// Returns a fault for each of these local files that is gone while `rules.dir` has a file of its
/// name: other prices would be in force. Such a loss is taken for a mistake.
pub(super) fn find_uncovered(local: &[String], sources: &[RulesSource]) -> Vec<ConfigError> {
    let find = |name: Option<&str>| sources.iter().find(|(file, _)| file_name(file) == name);
    let uncovered = local.iter().filter_map(|gone| {
        let (other, _) = find(file_name(gone)).filter(|(file, _)| file != gone)?;
        Some(SourceLocation::whole_source(gone).error(format!(
            "the file is gone, and {other} would take its place. To let it, restart"
        )))
    });
    uncovered.collect()
}

fn file_name(file: &str) -> Option<&str> {
    file.rsplit('/').next()
}

/// Parses the rules files. Fails if they have faults, or have no model for a configured vendor.
pub(super) fn parse_catalogue(
    folders: &RulesSection,
    sources: &[RulesSource],
    naming: &[VendorModelNames],
) -> Result<Catalogue, Vec<ConfigError>> {
    let cut = sources.iter().filter_map(|(file, text)| find_truncated(file, text));
    let mut faults: Vec<ConfigError> = cut.collect();
    match Catalogue::parse(sources, naming) {
        Ok(catalogue) => {
            let folder = folders.local.as_ref().unwrap_or(&folders.dir);
            faults.extend(catalogue.find_missing_vendors(naming, folder));
            if faults.is_empty() { Ok(catalogue) } else { Err(faults) }
        }
        Err(found) => {
            faults.extend(found);
            Err(faults)
        }
    }
}

/// Returns the fault that a file is empty or does not end with a line break. A file that was
/// written completely ends with one. A truncated file seldom does, and it may parse without error
/// although the restrictions further below are missing.
fn find_truncated(file: &str, text: &str) -> Option<ConfigError> {
    let what = if text.trim().is_empty() {
        "the file is empty"
    } else if text.ends_with('\n') {
        return None;
    } else {
        "the file does not end with a line break: it may be cut short"
    };
    Some(SourceLocation::whole_source(file).error(what))
}

/// Loads the catalogue of a configuration.
pub(super) fn load_catalogue(conf: &Config) -> anyhow::Result<Catalogue> {
    let sources = read_sources(&conf.rules)?;
    parse_catalogue(&conf.rules, &sources, &vendor_model_names(conf))
        .map_err(|found| config_error(&found))
}

/// Returns the names that the vendors have for the models.
pub(super) fn vendor_model_names(conf: &Config) -> Vec<VendorModelNames> {
    conf.vendors.iter().map(|v| v.naming.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const HEAD: &str = "dialect = \"chat\"\nauth = { header = \"x\" }\n\
                        estimate = { output_tokens = 1, image_tokens = 1, document_tokens = 1 }\n";

    fn text(vendor: &str, row: &str) -> String {
        format!("vendor = \"{vendor}\"\n{HEAD}[chat]\n{row}\n")
    }

    /// The folders `dir` and `local` with these files.
    fn folders(files: &[(&str, &str)]) -> (tempfile::TempDir, RulesSection) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["dir", "local"] {
            fs::create_dir(path(name)).expect("a folder");
        }
        for (name, text) in files {
            fs::write(path(name), text).expect("written");
        }
        let section = RulesSection { dir: path("dir"), local: Some(path("local")) };
        (folder, section)
    }

    fn faults_of(section: &RulesSection, vendors: &[&str]) -> Vec<String> {
        let naming = vendors.iter().map(|vendor| VendorModelNames {
            vendor: (*vendor).to_owned(),
            ..VendorModelNames::default()
        });
        let naming: Vec<_> = naming.collect();
        let sources = read_sources(section).expect("readable");
        let faults = parse_catalogue(section, &sources, &naming).err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_local_file_replaces_that_of_its_name_and_others_are_added() {
        let row = |model: &str| format!("\"{model}\" = {{ input = 1, output = 1, context = 9 }}");
        let (_folder, section) = folders(&[
            ("dir/vendor_x.toml", &text("vendor_x", &row("x"))),
            ("dir/vendor_y.toml", &text("vendor_y", &row("y"))),
            ("local/vendor_y.toml", &text("vendor_y", &row("mine"))),
            ("local/vendor_a.toml", &text("vendor_a", &row("a"))),
            ("local/vendor_x.toml.dpkg-old", "no rules"),
        ]);
        let sources = read_sources(&section).expect("readable");
        let names: Vec<_> = sources.iter().filter_map(|(file, _)| file_name(file)).collect();
        assert_eq!(names, ["vendor_a.toml", "vendor_x.toml", "vendor_y.toml"]);
        let local = local_files(&section, &sources);
        let dir = section.local.clone().unwrap_or_default();
        assert_eq!(local, [format!("{dir}/vendor_a.toml"), format!("{dir}/vendor_y.toml")]);
        let catalogue = parse_catalogue(&section, &sources, &[]).expect("sound rules");
        let sold = |model: &str| catalogue.find(model).is_some();
        assert!(sold("a") && sold("x") && sold("mine") && !sold("y"));
    }

    #[test]
    fn the_version_of_the_prices_is_that_of_the_same_files_in_one_folder() {
        let row = |model: &str| format!("\"{model}\" = {{ input = 1, output = 1, context = 9 }}");
        let (x, y) = (text("vendor_x", &row("x")), text("vendor_y", &row("y")));
        let version = |files: &[(&str, &str)]| {
            let (_folder, section) = folders(files);
            let sources = read_sources(&section).expect("readable");
            parse_catalogue(&section, &sources, &[]).expect("sound rules").version
        };
        let in_one = version(&[("dir/vendor_x.toml", &x), ("dir/vendor_y.toml", &y)]);
        let first = version(&[("local/vendor_x.toml", &x), ("dir/vendor_y.toml", &y)]);
        let other = text("vendor_x", &row("z"));
        let covered = version(&[
            ("dir/vendor_x.toml", &other),
            ("local/vendor_x.toml", &x),
            ("dir/vendor_y.toml", &y),
        ]);
        assert_eq!((&first, &covered), (&in_one, &in_one));
        let without = version(&[("dir/vendor_x.toml", &other), ("dir/vendor_y.toml", &y)]);
        assert_ne!(without, in_one);
    }

    #[test]
    fn a_fault_names_the_file_that_has_it() {
        let sound = "\"a\" = { input = 1, output = 1, context = 9 }";
        let wrong = "\"a\" = { inptu = 1, output = 1, context = 9 }";
        let (_folder, section) = folders(&[
            ("dir/vendor_y.toml", &text("vendor_y", sound)),
            ("local/vendor_y.toml", &text("vendor_y", wrong)),
        ]);
        let local = section.local.clone().unwrap_or_default();
        let faults = faults_of(&section, &[]);
        assert!(!faults.is_empty());
        let line = format!("{local}/vendor_y.toml:6: ");
        assert!(faults.iter().all(|fault| fault.starts_with(&line)), "{faults:?}");

        // What the other folder has wrong is hidden by a local file.
        let (_folder, section) = folders(&[
            ("dir/vendor_y.toml", &text("vendor_y", wrong)),
            ("local/vendor_y.toml", &text("vendor_y", sound)),
        ]);
        assert_eq!(faults_of(&section, &["vendor_y"]), Vec::<String>::new());

        // A model that both a local and another file sell is told with both.
        let (_folder, section) = folders(&[
            ("dir/vendor_y.toml", &text("vendor_y", sound)),
            ("local/vendor_z.toml", &text("vendor_z", sound)),
        ]);
        let (dir, local) = (&section.dir, section.local.clone().unwrap_or_default());
        let twice = format!(
            "{local}/vendor_z.toml:6: model 'a' is already defined at {dir}/vendor_y.toml:6"
        );
        assert_eq!(faults_of(&section, &[]), [twice]);
    }

    #[test]
    fn a_vendor_without_models_is_told_with_the_file_that_lacks_them() {
        let sound = "\"a\" = { input = 1, output = 1, context = 9 }";
        let (_folder, section) = folders(&[
            ("dir/vendor_x.toml", &text("vendor_x", "")),
            ("dir/vendor_y.toml", &text("vendor_y", sound)),
        ]);
        let (dir, local) = (&section.dir, section.local.clone().unwrap_or_default());
        let faults = faults_of(&section, &["vendor_x", "vendor_z"]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let empty = format!("{dir}/vendor_x.toml: the file has no models");
        let missing = format!("{local}/vendor_z.toml: the file does not exist");
        assert!(faults[0].starts_with(&empty) && faults[1].starts_with(&missing), "{faults:?}");
    }

    #[test]
    fn a_local_folder_that_is_missing_would_have_sold_at_the_other_prices() {
        let sound = "\"a\" = { input = 1, output = 1, context = 9 }";
        let (_folder, section) = folders(&[("dir/vendor_y.toml", &text("vendor_y", sound))]);
        let local = section.local.clone().unwrap_or_default();
        fs::remove_dir(&local).expect("removed");
        let told = read_sources(&section).err().map(|why| format!("{why:#}")).unwrap_or_default();
        assert!(told.starts_with(&format!("cannot read the rules in {local}: ")), "{told}");
    }
}
