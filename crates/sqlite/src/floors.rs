//! How far the lines were searched in vain.
//!
//! When a destination is paused, its messages stay at the front of their line, and every claim would read over all of them
//! again. So a handle remembers, for each lane, up to which place there is nothing but messages of the topics that were
//! left. It stays true: a message that comes, or comes back, always gets a higher place than all before it. For other
//! topics it says nothing, so it is forgotten when they change.

use std::collections::HashMap;

/// Up to which place each lane holds nothing for a claim that leaves these topics.
#[derive(Clone, Default)]
pub(crate) struct Floors {
    /// A JSON list, as in the scope of a claim.
    left: String,
    lanes: HashMap<i64, i64>,
}

impl Floors {
    /// What is known for a claim that leaves these topics.
    pub fn under(self, left: &str) -> Self {
        if self.left == left {
            return self;
        }
        Self {
            left: left.to_owned(),
            lanes: HashMap::new(),
        }
    }

    /// Where to begin in a lane.
    pub fn of(&self, lane: i64) -> i64 {
        self.lanes.get(&lane).copied().unwrap_or(i64::MIN)
    }

    /// There is nothing up to this place.
    pub fn raise(&mut self, lane: i64, pos: i64) {
        self.lanes.insert(lane, pos);
    }
}
