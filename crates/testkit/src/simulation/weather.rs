//! How often things go wrong, and how.

use fastrand::Rng;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How it is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sky {
    /// Nothing goes wrong.
    Clear,
    /// Many things do.
    Storm,
    /// The store cannot be reached.
    Outage,
    /// Nothing goes wrong, but nobody is woken.
    Deaf,
}

/// The weather over the whole world.
#[derive(Clone)]
pub struct Weather(Arc<Mutex<Sky>>);

/// What happens to one call of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing but the way there and back.
    None,
    /// It cannot be reached; nothing was done.
    Unreachable,
    /// It lost a race; nothing was done.
    Contention,
    /// It is done, and the answer is lost.
    Unknown,
    /// It is done, late; or the answer comes late.
    Late,
    /// There is no answer for long, and then the connection is given up; nothing was done.
    Hang,
    /// There is no answer for long, and then the connection is given up; but it was done, at some time.
    HangUnknown,
}

/// The whole course of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    pub fault: Fault,
    /// Before the store does it.
    pub before: Duration,
    /// Before the answer is there.
    pub after: Duration,
}

impl Weather {
    /// Begins like this.
    pub fn new(sky: Sky) -> Self {
        Self(Arc::new(Mutex::new(sky)))
    }

    /// How it is now.
    pub fn sky(&self) -> Sky {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It changes.
    pub fn turn(&self, sky: Sky) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sky;
    }

    /// What happens to the next call.
    pub(super) fn course(&self, chance: &mut Rng) -> Course {
        let fault = match (self.sky(), chance.u32(0..1000)) {
            (Sky::Clear | Sky::Deaf, _) => Fault::None,
            (Sky::Storm, 0..50) => Fault::Unreachable,
            (Sky::Storm, 50..100) => Fault::Contention,
            (Sky::Storm, 100..160) => Fault::Unknown,
            (Sky::Storm, 160..300) => Fault::Late,
            (Sky::Storm, 300..308) => Fault::Hang,
            (Sky::Storm, 308..316) => Fault::HangUnknown,
            (Sky::Outage, 0..900) => Fault::Unreachable,
            (Sky::Outage, 900..950) => Fault::Hang,
            _ => Fault::None,
        };
        let ms = |chance: &mut Rng, most: u64| Duration::from_millis(chance.u64(0..=most));
        let (before, after) = match fault {
            Fault::Late => (ms(chance, 800), ms(chance, 800)),
            Fault::Hang | Fault::HangUnknown => (ms(chance, 4000), ms(chance, 4000)),
            // Often at once: what meets at the same instant is worth most.
            _ if chance.bool() => (Duration::ZERO, Duration::ZERO),
            _ => (ms(chance, 3), ms(chance, 3)),
        };
        Course { fault, before, after }
    }
}
