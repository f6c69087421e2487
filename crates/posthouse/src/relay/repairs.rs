//! Taking back what dead relays held.
//!
//! A message may be what killed its relay. Whatever was in flight with it lost an attempt; if all of it went out together again, it
//! would lose the next one too, and end up dead beside the one that is to blame. So leases that ran out are taken back one first,
//! then two, then four, a moment apart: what kills its relay again does so in ever smaller company.

use posthouse_core::{Error, Store, repair};
use std::time::Duration;
use tokio::time::Instant;

use super::measures;

/// How often it looks for leases that ran out.
const EVERY: Duration = Duration::from_millis(900);
/// How long what was taken back has to show what it does.
const MOMENT: Duration = Duration::from_millis(100);
/// The most that are taken back at once.
const MOST: u32 = 256;

pub(super) struct Repairs {
    limit: u32,
    next: Instant,
}

impl Repairs {
    pub fn new() -> Self {
        Self {
            limit: 1,
            next: Instant::now(),
        }
    }

    /// Takes back what ran out, if it is time to look.
    pub async fn run(&mut self, store: &dyn Store) -> Result<(), Error> {
        if Instant::now() < self.next {
            return Ok(());
        }
        let freed = repair(store, self.limit).await?;
        measures::expired(freed);
        let more = freed >= self.limit;
        self.limit = if more { (2 * self.limit).min(MOST) } else { 1 };
        self.next = Instant::now() + if more { MOMENT } else { EVERY };
        Ok(())
    }

    /// When to go on, if more may have run out than was taken back.
    pub fn soon(&self) -> Option<Instant> {
        (self.limit > 1).then_some(self.next)
    }
}
