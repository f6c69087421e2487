//! A store as a relay sees it over a bad line, and a store that lies.

use async_trait::async_trait;
use fastrand::Rng;
use posthouse_core::{Claimed, Error, Look, Renewal, Store, Verdict, Wake};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    Fact, Fault, Gate, History, Sky, Weather, Who,
    history::{Ended, Grant},
};
use crate::wrapped::{Call, Hook, Reply};

/// A line that loses, delays and repeats nothing but answers, before any store; what the store did is written into the history.
///
/// A call that its caller gives up is not unsaid: what is on its way is done.
pub struct Faulty {
    who: Who,
    gate: Gate,
    weather: Weather,
    history: History,
    chance: Mutex<Rng>,
}

impl Faulty {
    /// The line of `who`.
    pub fn new(who: Who, gate: Gate, weather: Weather, history: History, seed: u64) -> Self {
        let chance = Mutex::new(Rng::with_seed(seed));
        Self {
            who,
            gate,
            weather,
            history,
            chance,
        }
    }

    /// One call, of which the caller hears or not.
    async fn ask(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        let asked = self.history.now();
        self.gate.pass().await;
        let course = self
            .weather
            .course(&mut self.chance.lock().unwrap_or_else(PoisonError::into_inner));
        let (fault, took) = (course.fault, course.before + course.after);
        if fault != Fault::None {
            let (who, verb, until) = (self.who, call.verb(), self.history.now() + took);
            self.history.add(Fact::Fault {
                who,
                verb,
                fault,
                until,
            });
        }
        let lost = matches!(fault, Fault::Unknown | Fault::HangUnknown);
        let heard = Heard {
            ever: !lost,
            took,
            asked,
            at: self.history.now() + took,
        };
        let (store, who, history) = (store.clone(), self.who, self.history.clone());
        let doing = async move {
            wait(course.before).await;
            match fault {
                Fault::Unreachable => Err(Error::Unavailable("the line is cut".into())),
                Fault::Contention => Err(Error::Contention("somebody was faster".into())),
                Fault::Hang => Err(Error::Timeout("no answer".into())),
                _ => told(call, &store, who, heard, &history).await,
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

    /// It is a hint, so a fault of it is no fault.
    async fn wake(&self, call: Call, at_most: Duration, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        self.gate.pass().await;
        let answer = match (self.weather.sky(), self.roll(20)) {
            (Sky::Deaf, _) | (Sky::Storm, 0..4) => {
                wait(at_most).await;
                Ok(Reply::Woken(Wake::Elapsed))
            }
            (Sky::Storm, 4) => {
                wait(at_most / 3).await;
                Ok(Reply::Woken(Wake::Rung))
            }
            (Sky::Storm, 5) | (Sky::Outage, _) => Err(Error::Unavailable("the line is cut".into())),
            _ => call.to(store).await,
        };
        self.gate.pass().await;
        answer
    }

    fn roll(&self, most: u64) -> u64 {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner).u64(0..most)
    }
}

#[async_trait]
impl Hook for Faulty {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match call {
            Call::Wake(at_most) => self.wake(call, at_most, store).await,
            call => self.ask(call, store).await,
        }
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

/// Asks the store, and writes down what it did.
async fn told(call: Call, store: &Arc<dyn Store>, who: Who, heard: Heard, history: &History) -> Result<Reply, Error> {
    if let Call::RecordConflict(lease, _) = &call {
        history.add(Fact::Conflict(who, lease.id));
    }
    let reply = call.to(store).await?;
    match (call, &reply) {
        (Call::Look(claim), Reply::Seen(Look { granted, .. })) if !granted.is_empty() => {
            let grant = |one: &Claimed| Grant {
                lease: one.lease.clone(),
                heard: heard.ever,
            };
            history.add(Fact::Claimed {
                who,
                batch: claim.batch,
                lease: claim.lease,
                asked: heard.asked,
                granted: granted.iter().map(grant).collect(),
            });
        }
        (Call::Renew(leases, lease), Reply::Renewals(answers)) => {
            // Who renews does not wait for longer than a third.
            let in_time = heard.ever && heard.took < lease / 3;
            history.add(Fact::Renewed {
                who,
                lease,
                asked: heard.asked,
                answers: leases.into_iter().zip(answers.iter().copied()).collect(),
                heard: in_time.then_some(heard.at),
            });
        }
        (Call::Settle(batch), Reply::Verdicts(verdicts)) => {
            let ended = |verdict: &Verdict| match verdict {
                Verdict::Settled => Ended::Settled,
                Verdict::LeaseLost => Ended::Lost,
                Verdict::Refused(_) | Verdict::Stale => Ended::Refused,
            };
            let batch = batch.into_iter().zip(verdicts.iter().map(ended)).collect();
            history.add(Fact::Settled { who, batch });
        }
        _ => {}
    }
    Ok(reply)
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

/// What makes a store lie.
pub struct Liar {
    lie: Lie,
    chance: Mutex<Rng>,
    /// What was granted last, to whomever.
    granted: Arc<Mutex<Vec<Claimed>>>,
}

impl Liar {
    /// One that lies so; liars of one store share what was `granted`.
    pub fn new(lie: Lie, seed: u64, granted: Arc<Mutex<Vec<Claimed>>>) -> Self {
        let chance = Mutex::new(Rng::with_seed(seed));
        Self { lie, chance, granted }
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lie == lie && self.chance.lock().unwrap_or_else(PoisonError::into_inner).u8(0..6) == 0
    }

    fn grant(&self, mut claimed: Vec<Claimed>, batch: u32) -> Vec<Claimed> {
        let lies = self.lies(Lie::GrantsTwice) && claimed.len() < batch as usize;
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if lies {
            claimed.extend(granted.pop());
        } else if !claimed.is_empty() {
            granted.clone_from(&claimed);
        }
        claimed
    }
}

#[async_trait]
impl Hook for Liar {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match call {
            Call::Look(claim) if self.lie == Lie::GrantsTwice => {
                let look = store.look(&claim).await?;
                Ok(Reply::Seen(Look {
                    granted: self.grant(look.granted, claim.batch),
                    ..look
                }))
            }
            Call::Renew(leases, _) if self.lie == Lie::RenewsNothing => {
                Ok(Reply::Renewals(vec![Renewal::Renewed; leases.len()]))
            }
            Call::Settle(batch) if self.lies(Lie::SettlesNothing) => {
                Ok(Reply::Verdicts(batch.iter().map(|_| Verdict::Settled).collect()))
            }
            call => call.to(store).await,
        }
    }
}
