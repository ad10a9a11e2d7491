//! Changes of a world's rules, while its gateway serves.

use std::time::{Duration, Instant};

use super::World;

/// Rules that were not taken by then never will be.
const PATIENCE: Duration = Duration::from_secs(20);

impl World {
    /// Makes a change of the rules, and waits until it is in force.
    pub(crate) async fn reload(&self, change: impl FnOnce()) {
        let reloads = || self.log().matches("rules reloaded").count();
        let before = reloads();
        change();
        self.gateway.signal("HUP");
        let end = Instant::now() + PATIENCE;
        while reloads() == before {
            assert!(Instant::now() < end, "the rules are not taken: {}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Adds costs to models of a vendor: each follows the beginning of its row.
    pub(crate) fn add_costs(&self, vendor: &str, costs: &[(&str, &str)]) {
        let file = self.path(&format!("rules/{vendor}.toml"));
        let mut text = std::fs::read_to_string(&file).expect("the rules");
        for (model, cost) in costs {
            let name = format!("\n\"{model}\"");
            let row = text.find(&name).unwrap_or_else(|| panic!("no {model}")) + name.len();
            let open = row + text[row..].find('{').expect("a table") + 1;
            text.insert_str(open, &format!(" cost = {cost},"));
        }
        std::fs::write(file, text).expect("other rules");
    }

    /// Adds a cost, in USD, to the one fee of a vendor.
    pub(crate) fn add_fee_cost(&self, vendor: &str, usd: &str) {
        let file = self.path(&format!("rules/{vendor}.toml"));
        let text = std::fs::read_to_string(&file).expect("the rules");
        let (before, fee) = text.rsplit_once("[[fee]]\n").expect("a fee");
        std::fs::write(file, format!("{before}[[fee]]\ncost = {usd}\n{fee}")).expect("other rules");
    }
}
