//! What a participant remembers of the steps that it has done, so that each is done once, and none after it was undone.

use crate::{Invalid, Limits, message::check_text};

/// What a participant is to do with a step that comes under a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It comes for the first time: do it.
    First,
    /// It was done before: answer as then.
    Before,
    /// It was undone, perhaps before it ever came: refuse it.
    Undone,
}

/// What a participant is to do when a step is to be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undoing {
    /// It was done: undo it.
    Now,
    /// It was undone before: there is nothing to do.
    Before,
    /// It never came, and there is nothing to undo; if it comes yet, it is refused.
    Never,
}

impl Doing {
    /// From the word of a store.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "first" => Some(Self::First),
            "before" => Some(Self::Before),
            "undone" => Some(Self::Undone),
            _ => None,
        }
    }
}

impl Undoing {
    /// From the word of a store.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "now" => Some(Self::Now),
            "before" => Some(Self::Before),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// Refuses a key that no store can keep.
pub fn check_step_key(key: &str) -> Result<(), Invalid> {
    check_text("key", key, Limits::NAME_BYTES)
}
