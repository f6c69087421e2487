//! A service that takes orders and has a broker execute them, each once: what an order is. The settings, the service, the worker and the broker stand beside it.

pub mod broker;
pub mod database;
pub mod service;
pub mod settings;
pub mod worker;

use posthouse::{Error, ledger::EntryKey};
use serde::{Deserialize, Serialize};

/// What is told to the broker.
pub const TOPIC: &str = "order.execute";
/// What keys are for: the ledger of orders.
pub const SCOPE: &str = "do";

/// A failure of the program, or of one of its requests.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderRequest {
    /// What is bought or sold.
    pub symbol: String,
    /// `buy` or `sell`.
    pub side: Side,
    /// How many.
    pub quantity: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Buy,
    Sell,
}

/// What the broker answers: the result that the ledger keeps, and that every repetition is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    pub status: String,
    pub execution: String,
    pub filled: u32,
}

impl OrderRequest {
    /// Reads an order, and says what is wrong with it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let order: Self = serde_json::from_slice(body).map_err(|e| e.to_string())?;
        if order.symbol.is_empty() || order.symbol.len() > 16 {
            return Err("symbol: must have 1 to 16 bytes".to_owned());
        }
        if order.quantity == 0 {
            return Err("quantity: must be at least 1".to_owned());
        }
        Ok(order)
    }
}

/// The entry of an order in the ledger, by its account and its key.
pub fn entry(account: &str, key: &str) -> Result<EntryKey, Error> {
    let entry = EntryKey::new(format!("{SCOPE} POST /do/order"), key).tenant(account);
    entry.check()?;
    Ok(entry)
}
