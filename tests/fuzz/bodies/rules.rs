//! Any rules file is read to its end: it gives models, plans, books or faults, and no panic.

use tollgate::catalogue::Catalogue;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for file in ["fuzz.toml", "plans.toml", "books.toml"] {
        let sources = [(file.to_owned(), text.to_owned())];
        if let Ok(catalogue) = Catalogue::parse(&sources, &[]) {
            for model in catalogue.models() {
                assert!(model.listing(&model.id, 0, None).is_object());
            }
        }
    }
}
