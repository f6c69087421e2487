//! The leases that this relay holds: until when, and renewing them.

use posthouse_core::{Lease, LeaseToken, Renewal, Store, class};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{locked, points::point};

/// All leases in flight.
pub(super) struct Held {
    lease: Duration,
    /// In one order, so that a run with a seed can be repeated.
    leases: Mutex<BTreeMap<(i64, LeaseToken), Arc<Deadline>>>,
    /// The last one is given up.
    emptied: Notify,
}

struct Deadline {
    lease: Lease,
    /// By our own clock, from before the store was asked: never later than by the store's.
    until: Mutex<Instant>,
    /// The store said that it is not ours.
    lost: AtomicBool,
    said: Notify,
}

/// One of them; given up when it is dropped.
pub(super) struct Grip {
    held: Arc<Held>,
    deadline: Arc<Deadline>,
}

impl Held {
    pub fn new(lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            lease,
            leases: Mutex::default(),
            emptied: Notify::new(),
        })
    }

    /// Takes hold of what the store has granted after it was `asked`.
    pub fn take(self: &Arc<Self>, lease: Lease, asked: Instant) -> Grip {
        let deadline = Arc::new(Deadline {
            lease,
            until: Mutex::new(asked + self.lease),
            lost: AtomicBool::new(false),
            said: Notify::new(),
        });
        locked(&self.leases).insert(deadline.key(), deadline.clone());
        Grip {
            held: self.clone(),
            deadline,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        locked(&self.leases).len()
    }

    /// Returns when there is none.
    pub async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Renews all of them at a third of their time, for as long as somebody wants it. Those that somebody has just locked are asked for again
    /// soon: it may be for the sake of others that they stand with.
    pub async fn renew_for_ever(&self, store: &dyn Store) {
        let third = self.lease / 3;
        let (mut all_at, mut busy) = (Instant::now() + third, Vec::new());
        loop {
            let soon = Instant::now() + third / 10;
            sleep_until(if busy.is_empty() { all_at } else { soon.min(all_at) }).await;
            let all = Instant::now() >= all_at;
            let leases = if all { self.leases() } else { std::mem::take(&mut busy) };
            // Without an answer the deadlines stay, and whoever works under one stops there; there is time for one more try.
            let answered = match tokio::time::timeout(third, self.renew(store, &leases)).await {
                Ok(Ok(locked)) => {
                    busy = locked;
                    true
                }
                Ok(Err(error)) => {
                    tracing::warn!(class = class::of_error(&error), %error, leases = leases.len(), "leases could not be renewed");
                    false
                }
                Err(_) => {
                    tracing::warn!(
                        leases = leases.len(),
                        "the store does not answer, and leases are not renewed"
                    );
                    false
                }
            };
            if !answered {
                all_at = Instant::now() + third / 10;
            } else if all {
                all_at = Instant::now() + third;
            }
        }
    }

    fn leases(&self) -> Vec<Lease> {
        locked(&self.leases).values().map(|d| d.lease.clone()).collect()
    }

    /// Answers those that somebody has locked, and that are still held.
    pub async fn renew(&self, store: &dyn Store, leases: &[Lease]) -> Result<Vec<Lease>, posthouse_core::Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let asked = Instant::now();
        point("relay::before_renew").await;
        let answers = store.renew(leases, self.lease).await?;
        point("relay::after_renew").await;
        let held = locked(&self.leases);
        let mut busy = Vec::new();
        for (lease, answer) in leases.iter().zip(answers) {
            let Some(deadline) = held.get(&(lease.seq, lease.token)) else {
                continue;
            };
            match answer {
                Renewal::Renewed => *locked(&deadline.until) = asked + self.lease,
                Renewal::Lost => {
                    deadline.lost.store(true, Ordering::SeqCst);
                    deadline.said.notify_waiters();
                }
                // Somebody is just settling it; whether that is a handler of ours, its commit will tell.
                Renewal::Locked => busy.push(lease.clone()),
            }
        }
        Ok(busy)
    }
}

impl Deadline {
    fn key(&self) -> (i64, LeaseToken) {
        (self.lease.seq, self.lease.token)
    }
}

impl Grip {
    pub fn lease(&self) -> &Lease {
        &self.deadline.lease
    }

    /// Until when it holds, if it is not renewed.
    pub fn until(&self) -> Instant {
        *locked(&self.deadline.until)
    }

    /// How long it holds, if it is not renewed.
    pub fn remaining(&self) -> Duration {
        self.until().saturating_duration_since(Instant::now())
    }

    /// It is held no longer: somebody said so, or its time is over.
    pub fn is_lost(&self) -> bool {
        self.deadline.lost.load(Ordering::SeqCst) || self.remaining().is_zero()
    }

    /// Returns when it is held no longer.
    pub async fn lost(&self) {
        let said = async {
            loop {
                let said = self.deadline.said.notified();
                if self.deadline.lost.load(Ordering::SeqCst) {
                    return;
                }
                said.await;
            }
        };
        tokio::select! {
            biased;
            () = said => {}
            () = self.over() => {}
        }
    }

    /// Returns when its time is over, whatever was said.
    async fn over(&self) {
        // Ends: the deadline moves only while the lease is renewed.
        while !self.remaining().is_zero() {
            sleep_until(self.until()).await;
        }
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        let mut leases = locked(&self.held.leases);
        leases.remove(&self.deadline.key());
        if leases.is_empty() {
            self.held.emptied.notify_waiters();
        }
    }
}
