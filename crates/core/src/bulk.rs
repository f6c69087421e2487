//! Whether leases are settled in bulk: then a settlement waits a moment for others, and a store may keep those of a claim together.
//!
//! Together they cost less when many of a claim end in one call, and nothing is to be said about them. When each ends alone, or with a
//! receipt, each has to be taken out of what it stands in, which costs more than to have stood alone. And whoever waits for others that
//! do not come keeps the next of its key waiting.

/// From how many of one claim on, in one call, it pays to keep them together.
const TOGETHER: f64 = 64.0;
/// From how many in one call on it pays to wait for more.
const WAITS: f64 = 4.0;
/// How fast the past is forgotten.
const WEIGHT: f64 = 1.0 / 8.0;

/// How settlements come in, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bulk {
    /// All that end in a call.
    all: f64,
    /// Plain ones of one claim in a call.
    each: f64,
}

impl Bulk {
    /// A call ends `all`, of so many claims; `plain` of them were delivered, and there is nothing to say about them.
    pub fn ended(&mut self, all: usize, plain: usize, claims: usize) {
        self.all += (all as f64 - self.all) * WEIGHT;
        self.each += (plain as f64 / claims.max(1) as f64 - self.each) * WEIGHT;
    }

    /// Whether leases of a claim had better stand together.
    pub fn stands_together(&self) -> bool {
        self.each >= TOGETHER
    }

    /// Whether a settlement waits a moment for others.
    pub fn waits(&self) -> bool {
        self.all >= WAITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(calls: usize, all: usize, plain: usize, claims: usize) -> Bulk {
        let mut bulk = Bulk::default();
        (0..calls).for_each(|_| bulk.ended(all, plain, claims));
        bulk
    }

    #[test]
    fn many_of_one_claim_stand_together() {
        assert!(!Bulk::default().stands_together(), "nothing is known yet");
        assert!(after(3, 500, 500, 1).stands_together());
        assert!(after(20, 1000, 1000, 3).stands_together());
        assert!(
            !after(100, 1000, 1000, 20).stands_together(),
            "many claims, a few of each"
        );
        assert!(!after(100, 32, 32, 1).stands_together(), "small ones");
        assert!(!after(100, 1000, 0, 1).stands_together(), "all with receipts");
    }

    #[test]
    fn who_comes_alone_waits_for_nobody() {
        assert!(!Bulk::default().waits());
        assert!(!after(100, 1, 1, 1).waits());
        assert!(!after(100, 3, 0, 3).waits());
        assert!(after(100, 5, 0, 5).waits(), "whatever is said about them");
        assert!(after(1, 100, 100, 1).waits(), "a crowd is noticed at once");
    }

    #[test]
    fn it_is_soon_known_when_that_changes() {
        let mut bulk = after(100, 500, 500, 1);
        (0..20).for_each(|_| bulk.ended(10, 10, 4));
        assert!(!bulk.stands_together() && bulk.waits());
        (0..30).for_each(|_| bulk.ended(1, 1, 1));
        assert!(!bulk.waits());
    }
}
