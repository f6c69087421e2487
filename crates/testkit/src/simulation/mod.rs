//! The parts of a simulated world: a store that fails as databases do, destinations that behave as badly as real ones, the weather
//! that decides how often, and a judge who reads the history afterwards.
//!
//! All chance comes from seeds and all time from the runtime, which is paused: the same seed makes the same history, byte by byte.
//! The relay is not here, because nothing here may depend on it; a world with relays in it is in the tests of `posthouse`.

mod destination;
mod faulty;
mod gate;
mod history;
mod judge;
mod tables;
mod weather;

pub use destination::{Destination, Fate, Part, Wire};
pub use faulty::{Faulty, Liar, Lie};
pub use gate::Gate;
pub use history::{Answer, Ended, Fact, Grant, History, Terms, Who};
pub use judge::Broken;
pub use tables::judge;
pub use weather::{Fault, Sky, Weather};
