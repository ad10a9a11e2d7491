//! The rooms of money alone.

pub mod catalogue {
    //! Of the catalogue, what reads prices.

    pub mod kind;
    mod prices;
}
pub mod ledger;
pub mod money;
pub mod toml_reader;
