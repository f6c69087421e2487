//! Destinations of Posthouse: one file and one feature for each kind, none by default.
//!
//! | feature | sends to | see |
//! |---|---|---|
//! | `http` | a URL, as a signed webhook | [`http`] |
//! | `webhook` | nothing: signing and verifying alone, for those who receive | [`webhook`] |
//!
//! ```no_run
//! # #[cfg(feature = "http")]
//! # fn example() -> Result<(), posthouse_core::Invalid> {
//! use posthouse_transports::http::{Http, Secret};
//!
//! let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?;
//! let billing = Http::builder("https://billing.example/usage").secret(secret).build()?;
//! # Ok(()) }
//! ```
//!
//! The other side, in any framework that gives the raw body:
//!
//! ```
//! # #[cfg(feature = "webhook")]
//! # mod example {
//! use posthouse_transports::webhook::{Secret, Verifier};
//! use std::{collections::HashMap, time::SystemTime};
//!
//! fn receive(secret: Secret, headers: &HashMap<String, String>, body: &[u8]) -> u16 {
//!     let header = |name: &str| headers.get(name).map(String::as_str);
//!     match Verifier::new(secret).verify(header, body, SystemTime::now()) {
//!         Ok(_webhook) => 204, // Do it once for each `_webhook.id`.
//!         Err(_refused) => 401,
//!     }
//! }
//! # }
//! ```
//!
//! A transport sends once and says what it found out. Trying again is the relay's business, and is written down there.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "webhook")]
pub mod webhook;
