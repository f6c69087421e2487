//! How much a relay takes upon itself: messages in flight, and their bytes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::measures;

pub(super) struct Load {
    slots: Arc<Semaphore>,
    concurrency: usize,
    bytes: AtomicU64,
    max_bytes: u64,
}

/// Room for some messages, before they are claimed.
pub(super) struct Reserved {
    load: Arc<Load>,
    slots: OwnedSemaphorePermit,
}

/// The part of one message; free again when dropped.
pub(super) struct Share {
    load: Arc<Load>,
    bytes: u64,
    _slot: OwnedSemaphorePermit,
}

impl Load {
    pub fn new(concurrency: usize, max_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            slots: Arc::new(Semaphore::new(concurrency)),
            concurrency,
            bytes: AtomicU64::new(0),
            max_bytes,
        })
    }

    /// Room for how many more messages there is.
    pub fn free(&self) -> u32 {
        u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX)
    }

    /// From how much room on a claim of up to so many is worth while.
    pub fn enough(&self, most: u32) -> u32 {
        let part = u32::try_from(self.concurrency / 4).unwrap_or(u32::MAX);
        most.min(part.max(1))
    }

    /// Room for up to so many. None if there is none, be it for messages or for bytes.
    pub fn reserve(self: &Arc<Self>, most: u32) -> Option<Reserved> {
        let wanted = self.slots.available_permits().min(most as usize);
        if wanted == 0 || self.free_bytes() == 0 {
            return None;
        }
        // Another loop may be faster; the next round finds what it has left.
        let slots = self
            .slots
            .clone()
            .try_acquire_many_owned(u32::try_from(wanted).ok()?)
            .ok()?;
        Some(Reserved {
            load: self.clone(),
            slots,
        })
    }

    fn free_bytes(&self) -> u64 {
        self.max_bytes.saturating_sub(self.bytes.load(Ordering::Relaxed))
    }
}

impl Reserved {
    pub fn count(&self) -> u32 {
        u32::try_from(self.slots.num_permits()).unwrap_or(u32::MAX)
    }

    /// How many bytes they may have together.
    pub fn bytes(&self) -> u64 {
        self.load.free_bytes().max(1)
    }

    /// The part of one of them. None when all are given out.
    pub fn share(&mut self, bytes: usize) -> Option<Share> {
        let slot = self.slots.split(1)?;
        let bytes = bytes as u64;
        self.load.bytes.fetch_add(bytes, Ordering::Relaxed);
        measures::taken();
        Some(Share {
            load: self.load.clone(),
            bytes,
            _slot: slot,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.load.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        measures::let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_all_is_enough_for_a_claim() {
        let load = Load::new(512, 1000);
        assert_eq!([load.enough(100), load.enough(500), load.enough(0)], [100, 128, 0]);
        assert_eq!(Load::new(1, 1000).enough(50), 1);
        let reserved = load.reserve(500).unwrap();
        assert_eq!(load.free(), 12);
        drop(reserved);
        assert_eq!(load.free(), 512);
    }

    #[test]
    fn slots_and_bytes_are_bounded_and_come_back() {
        let load = Load::new(4, 1000);
        let mut reserved = load.reserve(3).unwrap();
        let shares: Vec<_> = (0..3).map(|_| reserved.share(300).unwrap()).collect();
        assert!(reserved.share(1).is_none());
        let more = load.reserve(9).unwrap();
        assert_eq!((more.count(), more.bytes()), (1, 100));
        drop(more);
        let last = load.reserve(9).unwrap().share(5000).unwrap();
        assert!(load.reserve(9).is_none());
        drop(shares);
        assert!(load.reserve(9).is_none(), "slots, but no bytes");
        drop(last);
        assert_eq!(load.reserve(9).unwrap().bytes(), 1000);
    }
}
