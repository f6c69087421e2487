//! The leases that this relay holds: until when, and renewing them.

use posthouse_core::{Lease, LeaseToken, Renewal, Store, class};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::points::point;

/// All leases in flight.
pub(super) struct Held {
    lease: Duration,
    /// In one order, so that a run with a seed can be repeated.
    leases: Mutex<BTreeMap<(i64, LeaseToken), Deadline>>,
}

struct Deadline {
    lease: Lease,
    /// By our own clock, from before the store was asked: never later than by the store's.
    until: Instant,
    lost: CancellationToken,
}

/// One of them; given up when it is dropped.
pub(super) struct Grip {
    held: Arc<Held>,
    pub lease: Lease,
    lost: CancellationToken,
}

impl Held {
    pub fn new(lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            lease,
            leases: Mutex::default(),
        })
    }

    /// Takes hold of what the store has granted after it was `asked`.
    pub fn take(self: &Arc<Self>, lease: Lease, asked: Instant) -> Grip {
        let lost = CancellationToken::new();
        let deadline = Deadline {
            lease: lease.clone(),
            until: asked + self.lease,
            lost: lost.clone(),
        };
        self.locked().insert(key(&lease), deadline);
        Grip {
            held: self.clone(),
            lease,
            lost,
        }
    }

    /// Renews all of them at a third of their time, for as long as somebody wants it.
    pub async fn renew_for_ever(&self, store: &dyn Store) {
        let third = self.lease / 3;
        let mut wait = third;
        loop {
            tokio::time::sleep(wait).await;
            let leases: Vec<_> = self.locked().values().map(|d| d.lease.clone()).collect();
            // Without an answer the deadlines stay, and whoever works under one stops there; there is time for one more try.
            wait = match tokio::time::timeout(third, self.renew(store, &leases)).await {
                Ok(Ok(())) => third,
                Ok(Err(error)) => {
                    tracing::warn!(class = class::of_error(&error), %error, leases = leases.len(), "leases could not be renewed");
                    third / 10
                }
                Err(_) => {
                    tracing::warn!(
                        leases = leases.len(),
                        "the store does not answer, and leases are not renewed"
                    );
                    third / 10
                }
            };
        }
    }

    pub async fn renew(&self, store: &dyn Store, leases: &[Lease]) -> Result<(), posthouse_core::Error> {
        if leases.is_empty() {
            return Ok(());
        }
        let asked = Instant::now();
        point("relay::before_renew").await;
        let answers = store.renew(leases, self.lease).await?;
        point("relay::after_renew").await;
        let mut held = self.locked();
        for (lease, answer) in leases.iter().zip(answers) {
            let Some(deadline) = held.get_mut(&key(lease)) else {
                continue;
            };
            match answer {
                Renewal::Renewed => deadline.until = asked + self.lease,
                Renewal::Lost => deadline.lost.cancel(),
                // Somebody is just settling it; whether that is a handler of ours, its commit will tell.
                Renewal::Locked => {}
            }
        }
        Ok(())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<(i64, LeaseToken), Deadline>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grip {
    /// How long it holds, if it is not renewed.
    pub fn remaining(&self) -> Duration {
        self.until().saturating_duration_since(Instant::now())
    }

    /// Returns when it is held no longer: somebody said so, or its time is over.
    pub async fn lost(&self) {
        tokio::select! {
            biased;
            () = self.lost.cancelled() => {}
            () = self.over() => {}
        }
    }

    /// Returns when its time is over, whatever was said. For who is settling it: a renewal that comes a moment later finds it gone,
    /// and that is no loss.
    pub async fn over(&self) {
        // Ends: the deadline moves only while the lease is renewed.
        while !self.remaining().is_zero() {
            sleep_until(self.until()).await;
        }
    }

    fn until(&self) -> Instant {
        let held = self.held.locked();
        held.get(&key(&self.lease)).map_or_else(Instant::now, |d| d.until)
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        self.held.locked().remove(&key(&self.lease));
    }
}

fn key(lease: &Lease) -> (i64, LeaseToken) {
    (lease.seq, lease.token)
}
