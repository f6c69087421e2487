//! Whether leases are settled in bulk, so that a store may keep those of a claim together.
//!
//! Together they cost less when many of a claim end in one call, and nothing is to be said about them. When each ends alone, or with a
//! receipt, each has to be taken out of what it stands in, which costs more than to have stood alone.

/// From how many of one claim on, in one call, it pays.
const PAYS: f64 = 64.0;

/// How settlements come in, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bulk {
    /// Plain ones of one claim in a call.
    average: f64,
}

impl Bulk {
    /// A call has ended so many that were delivered, with nothing to say about them, out of so many claims.
    pub fn ended(&mut self, plain: usize, claims: usize) {
        let each = plain as f64 / claims.max(1) as f64;
        self.average += (each - self.average) / 8.0;
    }

    /// Whether leases had better stand together.
    pub fn pays(&self) -> bool {
        self.average >= PAYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(calls: usize, plain: usize, claims: usize) -> Bulk {
        let mut bulk = Bulk::default();
        (0..calls).for_each(|_| bulk.ended(plain, claims));
        bulk
    }

    #[test]
    fn it_pays_for_many_of_one_claim_at_a_time() {
        assert!(!Bulk::default().pays(), "nothing is known yet");
        assert!(after(3, 500, 1).pays());
        assert!(after(20, 1000, 3).pays());
        assert!(!after(100, 1000, 20).pays(), "many claims, a few of each");
        assert!(!after(100, 32, 1).pays(), "small ones");
        assert!(!after(100, 0, 0).pays(), "all with receipts");
    }

    #[test]
    fn it_is_soon_known_when_that_changes() {
        let mut bulk = after(100, 500, 1);
        (0..20).for_each(|_| bulk.ended(10, 4));
        assert!(!bulk.pays());
    }
}
