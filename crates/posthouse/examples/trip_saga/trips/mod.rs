//! The parts of a trip: the saga, those who do its steps, and the same over HTTP.

pub mod participants;
pub mod saga;
pub mod services;

use serde::{Deserialize, Serialize};

/// Any error.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What a traveller wants, and how he pays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trip {
    pub city: String,
    pub card: String,
}

/// What was booked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    pub code: String,
}
