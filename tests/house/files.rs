//! What the files of the crate say of each other: no long circles of imports, no two public types
//! of one name.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use super::{Faults, fault, files_in};

/// Files that import each other in a circle, at most.
const CIRCLE_FILES_MAX: usize = 2;

/// Public types that may share a name, and why.
const SHARED_NAMES: [(&str, &str); 0] = [];

/// A module's path, without the crate: of `src/store/redis.rs` it is `store`, `redis`.
type ModulePath = Vec<String>;

fn module_of(path: &str) -> ModulePath {
    let inside = path.strip_prefix("src/").unwrap_or(path).trim_end_matches(".rs");
    let parts = inside.split('/').map(str::to_owned);
    parts.filter(|part| part != "lib").collect()
}

fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|l| l.tokens.to_string() == "test")
    })
}

/// The paths that a file names, each as its segments.
#[derive(Default)]
struct NamedPaths {
    paths: Vec<Vec<String>>,
    /// What each imported name stands for.
    imported: BTreeMap<String, Vec<String>>,
}

impl NamedPaths {
    /// The paths of a file, where an imported name at their beginning is replaced by its path.
    fn of_file(file: &syn::File) -> Vec<Vec<String>> {
        let mut named = NamedPaths::default();
        named.visit_file(file);
        let NamedPaths { mut paths, imported } = named;
        let of_imported = paths.iter().filter_map(|path| {
            let [first, rest @ ..] = &path[..] else { return None };
            Some([imported.get(first)?, rest].concat())
        });
        let of_imported: Vec<_> = of_imported.collect();
        paths.extend(of_imported);
        paths
    }

    fn add_import(&mut self, name: &syn::Ident, path: Vec<String>) {
        self.imported.insert(name.to_string(), path.clone());
        self.paths.push(path);
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| {
            let mut path = before.to_vec();
            path.push(name.to_string());
            path
        };
        match tree {
            UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident)),
            UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = before.last() {
                    self.imported.insert(last.clone(), before.to_vec());
                }
                self.paths.push(before.to_vec());
            }
            UseTree::Name(name) => self.add_import(&name.ident, with(&name.ident)),
            UseTree::Rename(renamed) => self.add_import(&renamed.rename, with(&renamed.ident)),
            UseTree::Glob(_) => self.paths.push(before.to_vec()),
            UseTree::Group(group) => group.items.iter().for_each(|t| self.add_use(t, before)),
        }
    }

    /// The paths in what a macro is called with, which is not parsed any further.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.paths.push(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.paths.push(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.paths.push(path);
        self.paths.retain(|path| path.len() > 1);
    }
}

impl<'ast> Visit<'ast> for NamedPaths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(module) => &module.attrs,
            Item::Use(import) => &import.attrs,
            Item::Fn(function) => &function.attrs,
            Item::Impl(block) => &block.attrs,
            _ => &[],
        };
        if !is_test_only(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        self.add_use(&import.tree, &[]);
    }

    /// `pub(in crate::room)` names a module, and imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
    }
}

/// The file that a path leads to from a module: the deepest one on the way.
fn find_target(
    path: &[String],
    from: &ModulePath,
    modules: &BTreeSet<ModulePath>,
) -> Option<ModulePath> {
    let first = path.first()?.as_str();
    let mut at = from.clone();
    let mut rest = path;
    match first {
        "crate" => at.clear(),
        "self" | "super" => {}
        _ => {
            at.push(first.to_owned());
            modules.contains(&at).then_some(())?;
        }
    }
    if matches!(first, "crate" | "self") {
        rest = &rest[1..];
    } else if first == "super" {
        while let [above, more @ ..] = rest
            && above == "super"
        {
            at.pop();
            rest = more;
        }
    } else {
        rest = &rest[1..];
    }
    for name in rest {
        at.push(name.clone());
        if !modules.contains(&at) {
            at.pop();
            break;
        }
    }
    (!at.is_empty()).then_some(at)
}

/// Which files each file imports. `files` are paths and their parsed text.
fn imports(files: &[(String, syn::File)]) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
    let modules: BTreeSet<ModulePath> = files.iter().map(|(path, _)| module_of(path)).collect();
    let of_file = |(path, file): &(String, syn::File)| {
        let from = module_of(path);
        let named = NamedPaths::of_file(file);
        let targets = named.iter().filter_map(|named| find_target(named, &from, &modules));
        (from.clone(), targets.filter(|target| *target != from).collect())
    };
    files.iter().map(of_file).collect()
}

/// All modules that a module leads to, over any number of imports.
fn reachable(
    from: &ModulePath,
    graph: &BTreeMap<ModulePath, BTreeSet<ModulePath>>,
) -> BTreeSet<ModulePath> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(at) = waiting.pop() {
        for next in graph.get(at).into_iter().flatten() {
            if seen.insert(next.clone()) {
                waiting.push(next);
            }
        }
    }
    seen
}

/// The circles, each as its sorted files.
fn find_circles(files: &[(String, syn::File)]) -> BTreeSet<Vec<String>> {
    let graph = imports(files);
    let reached: BTreeMap<_, _> = graph.keys().map(|m| (m, reachable(m, &graph))).collect();
    let circle = |module: &ModulePath| {
        let of_it = reached[module]
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|their| their.contains(module)));
        of_it.map(|other| other.join("/")).collect::<Vec<_>>()
    };
    graph.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// The public types of a file, each with the line of its name.
fn public_types(file: &syn::File) -> Vec<(String, usize)> {
    let of_item = |item: &Item| {
        let (visibility, name) = match item {
            Item::Struct(i) => (&i.vis, &i.ident),
            Item::Enum(i) => (&i.vis, &i.ident),
            Item::Trait(i) => (&i.vis, &i.ident),
            Item::Type(i) => (&i.vis, &i.ident),
            Item::Union(i) => (&i.vis, &i.ident),
            _ => return None,
        };
        let is_public = !matches!(visibility, Visibility::Inherited);
        is_public.then(|| (name.to_string(), name.span().start().line))
    };
    file.items.iter().filter_map(of_item).collect()
}

fn parse(files: Vec<(String, String)>) -> Vec<(String, syn::File)> {
    let parsed = |(path, text): (String, String)| {
        let file = syn::parse_file(&text).unwrap_or_else(|why| panic!("{path}: {why}"));
        (path, file)
    };
    files.into_iter().map(parsed).collect()
}

fn all_files() -> Vec<(String, syn::File)> {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = files_in(top, "src", &["rs"]);
    files.retain(|(path, _)| path != "src/lib.rs" && !path.ends_with("/tests.rs"));
    parse(files)
}

fn shared_type_names(files: &[(String, syn::File)]) -> Faults {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, file) in files {
        for (name, line) in public_types(file) {
            places.entry(name).or_default().push((path, line));
        }
    }
    let is_excepted = |name: &str| SHARED_NAMES.iter().any(|(shared, _)| *shared == name);
    let shared = places.iter().filter(|(name, at)| at.len() > 1 && !is_excepted(name));
    let each = shared.flat_map(|(name, at)| {
        at.iter().map(move |(path, line)| {
            fault(path, *line, &format!("`{name}` is the name of another public type, too"))
        })
    });
    each.collect()
}

#[test]
fn files_import_each_other_in_no_long_circles() {
    let circles = find_circles(&all_files());
    let long: Vec<_> = circles.iter().filter(|c| c.len() > CIRCLE_FILES_MAX).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn no_two_public_types_share_a_name() {
    let shared = shared_type_names(&all_files());
    assert!(shared.is_empty(), "{}", shared.join("\n"));
}

#[test]
fn circles_and_shared_names_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = parse(vec![
        file("src/a.rs", "mod b; use b::B; pub struct Twice; struct Once;"),
        file("src/a/b.rs", "use super::super::c::{self, d::D as E}; pub(super) enum Once {}"),
        file("src/c.rs", "mod d; fn f() { log::info!(x = crate::a::g(1); \"\") }"),
        file("src/c/d.rs", "pub type Twice = u8; #[cfg(test)] mod tests { use crate::e::X; }"),
        file("src/e.rs", "fn f() { super::f::g() }"),
        file("src/f.rs", "fn g() { crate::e::f() }"),
        file("src/g.rs", "mod h; use crate::i as other; fn a() { other::j::b() }"),
        file("src/g/h.rs", ""),
        file("src/i.rs", "mod j;"),
        file("src/i/j.rs", "use crate::{g::{self}}; fn b() { g::h::c() }"),
    ]);
    let circles: Vec<_> = find_circles(&files).into_iter().collect();
    assert_eq!(circles, [vec!["a", "a/b", "c"], vec!["e", "f"], vec!["g", "i/j"]]);
    let shared = shared_type_names(&files);
    assert_eq!(shared.len(), 2, "{shared:?}");
    assert!(shared[0].starts_with("src/a.rs:1:"), "{shared:?}");
}
