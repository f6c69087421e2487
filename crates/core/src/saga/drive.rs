//! Load, decide, write; and again, if somebody else was faster.

use std::collections::{BTreeSet, HashMap};

use super::{Change, Found, Loaded, Report, SagaFilter, SagaView, Ticket, Verb};
use crate::{Error, Lease, Outcome, SagaId, Settlement, Store, Verdict};

/// How often somebody else may be faster before it is given up.
const MOST_TURNS: u32 = 100;

/// What becomes of the end of a lease on a message of a saga.
#[derive(Debug)]
pub enum Decided {
    /// This is to be settled.
    Settle(Box<Settlement>),
    /// Another message of the same saga comes first: ask again.
    Later,
    /// The saga cannot be read, and nothing is decided on it.
    Broken(Error),
}

/// The ends of leases on messages of sagas, as they are decided now: one answer for each, in order. Of several of one saga only the first is decided, for the
/// others would be stale with it. A message whose saga is gone has served.
pub async fn settlements(
    store: &dyn Store,
    actor: &str,
    ended: Vec<(&Lease, &Report, f64)>,
) -> Result<Vec<Decided>, Error> {
    let ids: BTreeSet<SagaId> = ended.iter().filter_map(|(lease, ..)| lease.saga).collect();
    let ids: Vec<SagaId> = ids.into_iter().collect();
    let loaded = store.load_sagas(&ids).await?;
    let mut sagas: HashMap<SagaId, Found> = ids.into_iter().zip(loaded).collect();
    if let Some(error) = passing(&mut sagas) {
        return Err(error);
    }
    let decide = |(lease, report, roll): (&Lease, &Report, f64)| {
        let Some(id) = lease.saga else {
            let none = "a message that is of no saga is settled as one of a saga";
            return Decided::Broken(Error::Internal(none.into()));
        };
        let settlement = match sagas.remove(&id) {
            None => return Decided::Later,
            Some(Err(error)) => return Decided::Broken(error),
            Some(Ok(Some(saga))) => saga.settle(lease, report, actor, roll),
            Some(Ok(None)) => Settlement::of_saga(lease, report, super::Own::Concluded, None),
        };
        Decided::Settle(Box::new(settlement))
    };
    Ok(ended.into_iter().map(decide).collect())
}

/// What kept a saga from being read just now: that says nothing of the saga, and the same call may succeed later.
fn passing(sagas: &mut HashMap<SagaId, Found>) -> Option<Error> {
    let failed = |found: &Found| found.as_ref().is_err_and(Error::retryable);
    let id = *sagas.iter().find(|(_, found)| failed(found))?.0;
    sagas.remove(&id)?.err()
}

/// One saga.
pub async fn load(store: &dyn Store, id: SagaId) -> Result<Loaded, Error> {
    let mut found = store.load_sagas(&[id]).await?;
    found.pop().unwrap_or(Ok(None))?.ok_or(Error::NoSaga(id))
}

/// Does what an operator asks for, and answers how the saga stands then.
pub async fn operate(store: &dyn Store, id: SagaId, verb: &Verb, actor: &str, note: &str) -> Result<SagaView, Error> {
    change(store, id, |saga| saga.ask(verb, actor, note).map(Some)).await?;
    Ok(load(store, id).await?.view())
}

/// The same for one that a filter has found, if the filter still takes it: it may have moved since. Whether it does.
pub async fn operate_if(
    store: &dyn Store,
    id: SagaId,
    filter: &SagaFilter,
    verb: &Verb,
    actor: &str,
    note: &str,
) -> Result<bool, Error> {
    let changed = change(store, id, |saga| match filter.takes(&saga.row) {
        true => saga.ask(verb, actor, note).map(Some),
        false => Ok(None),
    });
    Ok(changed.await?.is_some())
}

/// Writes down what was answered after its lease was lost, and what follows from it: that is answered, if anything was written.
pub async fn report_late(
    store: &dyn Store,
    id: SagaId,
    ticket: &Ticket,
    outcome: &Outcome,
    actor: &str,
) -> Result<Option<Change>, Error> {
    change(store, id, |saga| Ok(saga.late(ticket, outcome, actor))).await
}

/// Changes a saga as is decided on it, if anything is.
async fn change(
    store: &dyn Store,
    id: SagaId,
    decide: impl Fn(&Loaded) -> Result<Option<Change>, Error>,
) -> Result<Option<Change>, Error> {
    // Ends: after so many turns it is given up.
    for _ in 0..MOST_TURNS {
        let Some(change) = decide(&load(store, id).await?)? else {
            return Ok(None);
        };
        match store.change_saga(&change).await? {
            Verdict::Stale => {}
            Verdict::Refused(error) => return Err(error),
            Verdict::Settled | Verdict::LeaseLost => return Ok(Some(change)),
        }
    }
    Err(Error::Contention(format!("saga {id} changes all the time").into()))
}
