//! A store as a relay sees it over a bad line, and a store that lies.

use async_trait::async_trait;
use fastrand::Rng;
use posthouse_core::{
    Capabilities, Claim, Claimed, Conflict, Effect, Error, Fate, Lease, Pause, Receipt, Relay, Renewal, Settlement,
    Store, Verdict, Wake,
};
use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    Fact, Fault, Gate, History, Sky, Weather, Who,
    history::{Ended, Grant},
};

/// Any store, behind a line that loses, delays and repeats nothing but answers; what the store did is written into the history.
///
/// A call that its caller gives up is not unsaid: what is on its way is done.
pub struct Faulty {
    inner: Arc<dyn Store>,
    who: Who,
    gate: Gate,
    weather: Weather,
    history: History,
    chance: Mutex<Rng>,
}

impl Faulty {
    /// The store as `who` sees it.
    pub fn new(inner: Arc<dyn Store>, who: Who, gate: Gate, weather: Weather, history: History, seed: u64) -> Self {
        let chance = Mutex::new(Rng::with_seed(seed));
        Self {
            inner,
            who,
            gate,
            weather,
            history,
            chance,
        }
    }

    /// One call; `run` is told whether its answer will be heard, within this long at the latest.
    async fn call<T, F>(
        &self,
        verb: &'static str,
        run: impl FnOnce(Arc<dyn Store>, Heard) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
        T: Send + 'static,
    {
        let asked = self.history.now();
        self.gate.pass().await;
        let course = self
            .weather
            .course(&mut self.chance.lock().unwrap_or_else(PoisonError::into_inner));
        let (fault, took) = (course.fault, course.before + course.after);
        if fault != Fault::None {
            let (who, until) = (self.who, self.history.now() + took);
            self.history.add(Fact::Fault {
                who,
                verb,
                fault,
                until,
            });
        }
        let lost = matches!(fault, Fault::Unknown | Fault::HangUnknown);
        let (inner, heard) = (
            self.inner.clone(),
            Heard {
                ever: !lost,
                took,
                asked,
                at: self.history.now() + took,
            },
        );
        let doing = async move {
            wait(course.before).await;
            match fault {
                Fault::Unreachable => Err(Error::Unavailable("the line is cut".into())),
                Fault::Contention => Err(Error::Contention("somebody was faster".into())),
                Fault::Hang => Err(Error::Timeout("no answer".into())),
                _ => run(inner, heard).await,
            }
        };
        let answer = if took.is_zero() {
            doing.await
        } else {
            tokio::spawn(doing)
                .await
                .unwrap_or_else(|e| Err(Error::Internal(e.into())))
        };
        wait(course.after).await;
        self.gate.pass().await;
        if lost {
            Err(Error::Timeout("the answer is lost".into()))
        } else {
            answer
        }
    }

    fn roll(&self, most: u64) -> u64 {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner).u64(0..most)
    }
}

/// Whether and when a caller hears of what was done.
#[derive(Clone, Copy)]
struct Heard {
    ever: bool,
    took: Duration,
    asked: Duration,
    at: Duration,
}

async fn wait(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

#[async_trait]
impl Store for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, claim: &Claim) -> Result<Vec<Claimed>, Error> {
        let (claim, who, history) = (claim.clone(), self.who, self.history.clone());
        self.call("claim", move |store, heard| async move {
            let claimed = store.claim(&claim).await?;
            let grant = |one: &Claimed| Grant {
                lease: one.lease.clone(),
                heard: heard.ever,
            };
            let granted: Vec<_> = claimed.iter().map(grant).collect();
            if !granted.is_empty() {
                history.add(Fact::Claimed {
                    who,
                    batch: claim.batch,
                    lease: claim.lease,
                    asked: heard.asked,
                    granted,
                });
            }
            Ok(claimed)
        })
        .await
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        let (leases, who, history) = (leases.to_vec(), self.who, self.history.clone());
        self.call("renew", move |store, heard| async move {
            let answers = store.renew(&leases, lease).await?;
            // Who renews does not wait for longer than a third.
            let in_time = heard.ever && heard.took < lease / 3;
            let (asked, heard) = (heard.asked, in_time.then_some(heard.at));
            let pairs = leases.into_iter().zip(answers.iter().copied()).collect();
            history.add(Fact::Renewed {
                who,
                lease,
                asked,
                answers: pairs,
                heard,
            });
            Ok(answers)
        })
        .await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        let (batch, who, history) = (batch.to_vec(), self.who, self.history.clone());
        self.call("settle", move |store, _| async move {
            let verdicts = store.settle(&batch).await?;
            let ended = |verdict: &Verdict| match verdict {
                Verdict::Settled => Ended::Settled,
                Verdict::LeaseLost => Ended::Lost,
                Verdict::Refused(_) => Ended::Refused,
            };
            let batch = batch.into_iter().zip(verdicts.iter().map(ended)).collect();
            history.add(Fact::Settled { who, batch });
            Ok(verdicts)
        })
        .await
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        let leases = leases.to_vec();
        self.call("fates", move |store, _| async move { store.fates(&leases).await })
            .await
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        let effects = effects.to_vec();
        self.call("earlier_receipts", move |store, _| async move {
            store.earlier_receipts(&effects).await
        })
        .await
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        self.call(
            "expired",
            move |store, _| async move { store.expired(after, limit).await },
        )
        .await
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        let (lease, worker, who, history) = (lease.clone(), worker.to_owned(), self.who, self.history.clone());
        self.call("record_conflict", move |store, _| async move {
            history.add(Fact::Conflict(who, lease.id));
            store.record_conflict(&lease, &worker).await
        })
        .await
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        let relay = relay.clone();
        self.call("heartbeat", move |store, _| async move {
            store.heartbeat(&relay, ttl).await
        })
        .await
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        let relay = relay.to_owned();
        self.call("leave", move |store, _| async move { store.leave(&relay).await })
            .await
    }

    async fn gone(&self, destination: &str, worker: &str, reason: &str) -> Result<(), Error> {
        let (destination, worker, reason) = (destination.to_owned(), worker.to_owned(), reason.to_owned());
        self.call("gone", move |store, _| async move {
            store.gone(&destination, &worker, &reason).await
        })
        .await
    }

    async fn asleep(&self, worker: &str, at_most: Duration) -> Result<(), Error> {
        let worker = worker.to_owned();
        self.call(
            "asleep",
            move |store, _| async move { store.asleep(&worker, at_most).await },
        )
        .await
    }

    /// It is a hint, so a fault of it is no fault.
    async fn wake(&self, worker: &str, at_most: Duration) -> Result<Wake, Error> {
        self.gate.pass().await;
        let answer = match (self.weather.sky(), self.roll(20)) {
            (Sky::Deaf, _) | (Sky::Storm, 0..4) => {
                wait(at_most).await;
                Ok(Wake::Elapsed)
            }
            (Sky::Storm, 4) => {
                wait(at_most / 3).await;
                Ok(Wake::Rung)
            }
            (Sky::Storm, 5) | (Sky::Outage, _) => Err(Error::Unavailable("the line is cut".into())),
            _ => self.inner.wake(worker, at_most).await,
        };
        self.gate.pass().await;
        answer
    }
}

/// A mistake to be planted between a store and its users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Some settlements are answered and not made.
    SettlesNothing,
    /// Renewals are answered and not made.
    RenewsNothing,
    /// A claim is answered with what another claim was granted.
    GrantsTwice,
}

/// A store that lies.
pub struct Liar {
    inner: Arc<dyn Store>,
    lie: Lie,
    chance: Mutex<Rng>,
    /// What was granted last, to whomever.
    granted: Arc<Mutex<Vec<Claimed>>>,
}

impl Liar {
    /// One that lies so; liars of one store share what was `granted`.
    pub fn new(inner: Arc<dyn Store>, lie: Lie, seed: u64, granted: Arc<Mutex<Vec<Claimed>>>) -> Self {
        let chance = Mutex::new(Rng::with_seed(seed));
        Self {
            inner,
            lie,
            chance,
            granted,
        }
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lie == lie && self.chance.lock().unwrap_or_else(PoisonError::into_inner).u8(0..6) == 0
    }
}

#[async_trait]
impl Store for Liar {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, claim: &Claim) -> Result<Vec<Claimed>, Error> {
        let mut claimed = self.inner.claim(claim).await?;
        if self.lie != Lie::GrantsTwice {
            return Ok(claimed);
        }
        let lies = self.lies(Lie::GrantsTwice) && claimed.len() < claim.batch as usize;
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if lies {
            claimed.extend(granted.pop());
        } else if !claimed.is_empty() {
            granted.clone_from(&claimed);
        }
        Ok(claimed)
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        if self.lie == Lie::RenewsNothing {
            return Ok(vec![Renewal::Renewed; leases.len()]);
        }
        self.inner.renew(leases, lease).await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        if self.lies(Lie::SettlesNothing) {
            return Ok(batch.iter().map(|_| Verdict::Settled).collect());
        }
        self.inner.settle(batch).await
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        self.inner.fates(leases).await
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        self.inner.earlier_receipts(effects).await
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        self.inner.expired(after, limit).await
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        self.inner.record_conflict(lease, worker).await
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        self.inner.heartbeat(relay, ttl).await
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        self.inner.leave(relay).await
    }

    async fn gone(&self, destination: &str, worker: &str, reason: &str) -> Result<(), Error> {
        self.inner.gone(destination, worker, reason).await
    }

    async fn asleep(&self, worker: &str, at_most: Duration) -> Result<(), Error> {
        self.inner.asleep(worker, at_most).await
    }

    async fn wake(&self, worker: &str, at_most: Duration) -> Result<Wake, Error> {
        self.inner.wake(worker, at_most).await
    }
}
