//! The seam towards databases, as the relay sees it.
//!
//! The verbs that need the caller's transaction (`enqueue`, `settle_in`) are not here: a transaction belongs to a
//! driver, and each store crate has one small adapter for each.

use async_trait::async_trait;
use std::time::Duration;

use crate::{
    Claim, Claimed, Conflict, Effect, Error, Fate, Lease, Pause, Receipt, Relay, Renewal, SagaId, Settlement, Verdict,
    ledger::{Begin, Begun, Clearance, Conclusion, Fenced, Hold},
    saga::{
        Change, Found, Report,
        drive::{self, Decided},
    },
};

/// How a relay takes and finishes work. No default bodies but one, which is made of another: a wrapper must say what it does with each.
#[async_trait]
pub trait Store: Send + Sync {
    /// What this store can and cannot promise.
    fn capabilities(&self) -> Capabilities;

    /// Grants leases on free, due messages: oldest first, keys in order, tenants fairly, never more than asked. The grant is committed
    /// when this returns. A claim passes by the leases that run out, and tells of them if that costs it nothing.
    async fn look(&self, claim: &Claim) -> Result<Look, Error>;

    /// [`look`](Self::look), for the messages alone.
    async fn claim(&self, claim: &Claim) -> Result<Vec<Claimed>, Error> {
        Ok(self.look(claim).await?.granted)
    }

    /// Moves the deadlines of leases that are still held to `lease` from now. One answer for each, in order.
    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error>;

    /// Ends leases. One answer for each, in order; each is atomic, and one that fails spoils no other.
    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error>;

    /// What became of leases, as far as it is committed. One answer for each, in order. It changes nothing and waits for nobody: for
    /// whoever does not know whether a settlement was committed, and must not make it win by asking.
    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error>;

    /// The receipts that earlier deliveries of these effects have kept ([`Settlement::keeping`]): one answer for each, in order. A kept
    /// receipt is there as long as its message. Of several, the one of the lowest number is answered.
    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error>;

    /// Leases that ran out, by number, from above `after`. They end by a settlement like any other:
    /// [`Settlement::expired`].
    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error>;

    /// Writes into the audit what a worker that lost its lease found in its place; nothing if it holds it still.
    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error>;

    /// Tells of a relay, for as long as `ttl`; answers the destinations that operators have paused.
    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error>;

    /// A relay leaves: it is not live any more.
    async fn leave(&self, relay: &str) -> Result<(), Error>;

    /// A destination said that it is gone for good: pauses it, as an operator would, in the name of `worker`.
    async fn gone(&self, destination: &str, worker: &str, note: &str) -> Result<(), Error>;

    /// Begins something under a key of the ledger: insert or find, atomic and committed when this returns. It does not wait for whoever is at it.
    async fn begin(&self, ask: &Begin) -> Result<Begun, Error>;

    /// Its holder ends it. [`Fenced::LeaseLost`]: it is not his any more, and nothing was changed.
    async fn conclude(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error>;

    /// Its holder goes on for `lease` from now.
    async fn renew_hold(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error>;

    /// Whether messages that have an entry in the ledger ([`Lease::bound`]) may be sent. One answer for each, in order. Where it is free the message
    /// has it from then on, until it ends. Of what is not bound the answer is that it may; of a lease that is lost, that nothing is to be taken: it waits.
    async fn clear(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error>;

    /// Sagas as they are, with where their messages stand. One answer for each, in order; none if there is no such saga. One that cannot be read spoils no other.
    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error>;

    /// Changes a saga, if it is as it was when this was decided: [`Verdict::Stale`] if not. For what no lease is about: operators, and answers that came late.
    async fn change_saga(&self, change: &Change) -> Result<Verdict, Error>;

    /// Says that `worker` is about to sleep: it is rung for until a claim wakes it ([`Claim::wakes`]), or until this time is up. It must
    /// claim once more before it sleeps, or it may miss what came before; not if it says so again while it still holds.
    async fn asleep(&self, worker: &str, at_most: Duration) -> Result<(), Error>;

    /// Sleeps until something may have come for a worker that said that it sleeps, at most this long. A hint: it may wake for nothing,
    /// or not at all. Nothing is lost if it is dropped while it waits.
    async fn wake(&self, at_most: Duration) -> Result<Wake, Error>;
}

/// What a claim granted, and what it saw on the way.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The messages, under their leases.
    pub granted: Vec<Claimed>,
    /// Whether there may be leases that have run out ([`Store::expired`]). `None`: it did not look.
    pub ran_out: Option<bool>,
    /// It was granted all that was free: nothing was left because there was too much, or it was too large. When in doubt it is not.
    pub complete: bool,
}

/// Why a sleeper woke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Something was committed.
    Rung,
    /// The time was up.
    Elapsed,
}

/// What a store can promise. A store may say no; it may not lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// A commit wakes a sleeping relay of another process.
    pub wakes_across_processes: bool,
    /// Several claims can be under way at the same time.
    pub parallel_claim: bool,
    /// Two callers' transactions can be open at the same time.
    pub parallel_callers: bool,
    /// Callers do not wait for each other: of two whose transactions need the same, the second is told when it commits ([`Error::Contention`]), and runs it again.
    pub callers_retry: bool,
    /// What survives.
    pub durability: Durability,
}

/// What a commit survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Nothing: it lives in memory.
    Process,
    /// A crash of the process. One of the machine may lose what was committed in its last moments.
    System,
    /// A crash of the process and of the machine.
    Machine,
    /// What the settings of a server say, which it does not tell.
    Server,
}

/// Who takes back what ran out, in the logs of sagas.
const REPAIRER: &str = "repair";

/// Settles what ran out, at most `limit` leases, and says how many messages it freed or ended.
///
/// A lease whose holder reported meanwhile is no longer ours to settle, and is not counted; nor is one that is left for the next
/// repair, because somebody is just settling it or a later one of its key's run. Two repairers that meet on one
/// lease write one attempt and may both count it.
///
/// A lease that cannot be settled, whatever is tried, keeps nobody from taking back the others. It is an error only if nothing else was there.
pub async fn repair(store: &dyn Store, limit: u32) -> Result<u32, Error> {
    repair_telling(store, limit, &|_| ()).await
}

/// [`repair`], which tells of each that it has settled.
pub async fn repair_telling(store: &dyn Store, limit: u32, tell: &(dyn Fn(&Settlement) + Sync)) -> Result<u32, Error> {
    let (mut after, mut settled, mut left, mut failed) = (i64::MIN, 0, limit, None);
    // Ends: `after` rises with each page.
    while left > 0 {
        let page = store.expired(after, left.min(500)).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        let (mut of_sagas, plain): (Vec<_>, Vec<_>) = page.into_iter().partition(|lease| lease.saga.is_some());
        let batch: Vec<_> = plain.iter().map(Settlement::expired).collect();
        let mut freed = settle_telling(store, &batch, tell, &mut failed).await?;
        // Ends: of each saga one is decided in each turn.
        while !of_sagas.is_empty() {
            let reports = of_sagas.iter().map(|lease| (lease, &Report::Expired, 0.5));
            let decided = match drive::settlements(store, REPAIRER, reports.collect()).await {
                // Who may not settle sagas leaves them to relays.
                Err(Error::Denied(_)) => break,
                decided => decided?,
            };
            let later = of_sagas
                .iter()
                .zip(&decided)
                .filter(|(_, decided)| matches!(decided, Decided::Later));
            let later: Vec<_> = later.map(|(lease, _)| lease.clone()).collect();
            let batch = decided.into_iter().filter_map(|decided| match decided {
                Decided::Settle(settlement) => Some(*settlement),
                // What cannot be read is left to a person: its lease stays as it is.
                Decided::Later | Decided::Broken(_) => None,
            });
            freed += match settle_telling(store, &batch.collect::<Vec<_>>(), tell, &mut failed).await {
                Err(Error::Denied(_)) => break,
                settled => settled?,
            };
            of_sagas = later;
        }
        // What somebody is just settling does not use up the room of others.
        settled += freed;
        left = left.saturating_sub(freed);
    }
    match failed {
        Some(error) if settled == 0 => Err(error),
        _ => Ok(settled),
    }
}

/// Settles, and answers how many won. Where they cannot be settled together, each is by itself.
async fn settle_telling(
    store: &dyn Store,
    batch: &[Settlement],
    tell: &(dyn Fn(&Settlement) + Sync),
    failed: &mut Option<Error>,
) -> Result<u32, Error> {
    let mut won = 0;
    match settled(store, batch, tell).await {
        Err(error) if !concerns_one(&error) => return Err(error),
        Err(_) if batch.len() > 1 => {
            for one in batch.chunks(1) {
                match settled(store, one, tell).await {
                    Err(error) if concerns_one(&error) => *failed = Some(error),
                    settled => won += settled?,
                }
            }
        }
        Err(error) => *failed = Some(error),
        Ok(all) => won = all,
    }
    Ok(won)
}

/// Whether an error may be that of one settlement, and not of the store or of who asks.
fn concerns_one(error: &Error) -> bool {
    !error.retryable() && !matches!(error, Error::Denied(_))
}

/// Settles them together, and answers how many won.
async fn settled(store: &dyn Store, batch: &[Settlement], tell: &(dyn Fn(&Settlement) + Sync)) -> Result<u32, Error> {
    if batch.is_empty() {
        return Ok(0);
    }
    let verdicts = store.settle(batch).await?;
    let won = batch.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_settled());
    let won: Vec<_> = won.map(|(settlement, _)| settlement).collect();
    won.iter().for_each(|settlement| tell(settlement));
    Ok(u32::try_from(won.len()).unwrap_or(u32::MAX))
}
