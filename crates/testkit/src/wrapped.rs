//! A store around another: every verb passes one hook, which may look at it, answer it otherwise, or lose it.
//!
//! A new verb of [`Store`] is forwarded here, and nowhere else.

use async_trait::async_trait;
use posthouse_core::{
    Capabilities, Claim, Conflict, Effect, Error, Fate, Lease, Look, Pause, Receipt, Relay, Renewal, SagaId,
    Settlement, Store, Verdict, Wake,
    ledger::{Begin, Begun, Clearance, Conclusion, Fenced, Hold},
    saga::{Change, Found},
};
use std::{sync::Arc, time::Duration};

/// What stands before a store.
#[async_trait]
pub trait Hook: Send + Sync {
    /// Answers a call, in most cases with what `call.to(store)` says.
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error>;
}

/// A store behind a hook.
pub struct Wrapped<H> {
    /// What every call passes.
    pub hook: H,
    store: Arc<dyn Store>,
}

impl<H: Hook> Wrapped<H> {
    /// This store, as it looks through the hook.
    pub fn new(store: Arc<dyn Store>, hook: H) -> Self {
        Self { hook, store }
    }
}

/// A verb with what it was told, to be kept for as long as one likes.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the verbs and their arguments are explained in `Store`")]
pub enum Call {
    Look(Claim),
    Renew(Vec<Lease>, Duration),
    Settle(Vec<Settlement>),
    Fates(Vec<Lease>),
    EarlierReceipts(Vec<Effect>),
    Expired {
        after: i64,
        limit: u32,
    },
    RecordConflict(Lease, String),
    Heartbeat(Relay, Duration),
    Leave(String),
    Gone {
        destination: String,
        worker: String,
        note: String,
    },
    Begin(Begin),
    Conclude(Hold, Conclusion),
    RenewHold(Hold, Duration),
    Clear(Vec<Lease>),
    LoadSagas(Vec<SagaId>),
    ChangeSaga(Box<Change>),
    Asleep(String, Duration),
    Wake(Duration),
}

/// What a verb is answered with.
#[derive(Debug)]
#[expect(missing_docs, reason = "they are explained in `Store`")]
pub enum Reply {
    Seen(Look),
    Renewals(Vec<Renewal>),
    Verdicts(Vec<Verdict>),
    Fates(Vec<Fate>),
    Receipts(Vec<Option<Receipt>>),
    Leases(Vec<Lease>),
    Conflict(Conflict),
    Pauses(Vec<Pause>),
    Begun(Begun),
    Fenced(Fenced),
    Cleared(Vec<Clearance>),
    Sagas(Vec<Found>),
    Changed(Verdict),
    Done(()),
    Woken(Wake),
}

impl Call {
    /// The name of the verb.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Look(_) => "claim",
            Self::Renew(..) => "renew",
            Self::Settle(_) => "settle",
            Self::Fates(_) => "fates",
            Self::EarlierReceipts(_) => "earlier_receipts",
            Self::Expired { .. } => "expired",
            Self::RecordConflict(..) => "record_conflict",
            Self::Heartbeat(..) => "heartbeat",
            Self::Leave(_) => "leave",
            Self::Gone { .. } => "gone",
            Self::Begin(_) => "begin",
            Self::Conclude(..) => "conclude",
            Self::RenewHold(..) => "renew_hold",
            Self::Clear(_) => "clear",
            Self::LoadSagas(_) => "load_sagas",
            Self::ChangeSaga(_) => "change_saga",
            Self::Asleep(..) => "asleep",
            Self::Wake(..) => "wake",
        }
    }

    /// Asks a store.
    pub async fn to(&self, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match self {
            Self::Look(claim) => store.look(claim).await.map(Reply::Seen),
            Self::Renew(leases, lease) => store.renew(leases, *lease).await.map(Reply::Renewals),
            Self::Settle(batch) => store.settle(batch).await.map(Reply::Verdicts),
            Self::Fates(leases) => store.fates(leases).await.map(Reply::Fates),
            Self::EarlierReceipts(effects) => store.earlier_receipts(effects).await.map(Reply::Receipts),
            Self::Expired { after, limit } => store.expired(*after, *limit).await.map(Reply::Leases),
            Self::RecordConflict(lease, worker) => store.record_conflict(lease, worker).await.map(Reply::Conflict),
            Self::Heartbeat(relay, ttl) => store.heartbeat(relay, *ttl).await.map(Reply::Pauses),
            Self::Leave(relay) => store.leave(relay).await.map(Reply::Done),
            Self::Gone {
                destination,
                worker,
                note,
            } => store.gone(destination, worker, note).await.map(Reply::Done),
            Self::Begin(ask) => store.begin(ask).await.map(Reply::Begun),
            Self::Conclude(hold, conclusion) => store.conclude(hold, conclusion).await.map(Reply::Fenced),
            Self::RenewHold(hold, lease) => store.renew_hold(hold, *lease).await.map(Reply::Fenced),
            Self::Clear(leases) => store.clear(leases).await.map(Reply::Cleared),
            Self::LoadSagas(ids) => store.load_sagas(ids).await.map(Reply::Sagas),
            Self::ChangeSaga(change) => store.change_saga(change).await.map(Reply::Changed),
            Self::Asleep(worker, at_most) => store.asleep(worker, *at_most).await.map(Reply::Done),
            Self::Wake(at_most) => store.wake(*at_most).await.map(Reply::Woken),
        }
    }
}

/// The hook's answer, of the kind that belongs to the verb.
macro_rules! answer {
    ($self:ident, $call:expr, $kind:ident) => {
        match $self.hook.call($call, &$self.store).await? {
            Reply::$kind(answer) => Ok(answer),
            other => panic!("a hook answers another verb: {other:?}"),
        }
    };
}

#[async_trait]
impl<H: Hook> Store for Wrapped<H> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        answer!(self, Call::Look(claim.clone()), Seen)
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        answer!(self, Call::Renew(leases.to_vec(), lease), Renewals)
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        answer!(self, Call::Settle(batch.to_vec()), Verdicts)
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        answer!(self, Call::Fates(leases.to_vec()), Fates)
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        answer!(self, Call::EarlierReceipts(effects.to_vec()), Receipts)
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        answer!(self, Call::Expired { after, limit }, Leases)
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        answer!(self, Call::RecordConflict(lease.clone(), worker.to_owned()), Conflict)
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        answer!(self, Call::Heartbeat(relay.clone(), ttl), Pauses)
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        answer!(self, Call::Leave(relay.to_owned()), Done)
    }

    async fn gone(&self, destination: &str, worker: &str, note: &str) -> Result<(), Error> {
        let call = Call::Gone {
            destination: destination.to_owned(),
            worker: worker.to_owned(),
            note: note.to_owned(),
        };
        answer!(self, call, Done)
    }

    async fn begin(&self, ask: &Begin) -> Result<Begun, Error> {
        answer!(self, Call::Begin(ask.clone()), Begun)
    }

    async fn conclude(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        answer!(self, Call::Conclude(hold.clone(), conclusion.clone()), Fenced)
    }

    async fn renew_hold(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        answer!(self, Call::RenewHold(hold.clone(), lease), Fenced)
    }

    async fn clear(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
        answer!(self, Call::Clear(leases.to_vec()), Cleared)
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
        answer!(self, Call::LoadSagas(ids.to_vec()), Sagas)
    }

    async fn change_saga(&self, change: &Change) -> Result<Verdict, Error> {
        answer!(self, Call::ChangeSaga(Box::new(change.clone())), Changed)
    }

    async fn asleep(&self, worker: &str, at_most: Duration) -> Result<(), Error> {
        answer!(self, Call::Asleep(worker.to_owned(), at_most), Done)
    }

    async fn wake(&self, at_most: Duration) -> Result<Wake, Error> {
        answer!(self, Call::Wake(at_most), Woken)
    }
}
