//! Messages of sagas on their way to the store: what becomes of each is decided on the saga as it stands, and decided again if that has changed.

use posthouse_core::{
    Error, Lease, Outcome, Settlement, Store, Verdict, class,
    saga::{
        Report,
        drive::{self, Decided},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    line::{self, Next},
    measures,
    points::point,
    settler::{End, Ending},
};

/// The wait after a call that failed; it doubles up to the second.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The wait after a turn in which everybody else was faster.
const MOMENT: Duration = Duration::from_millis(2);
/// The most sagas that are loaded at once: each may hold much.
const MOST: usize = 100;

/// The end of a send for a saga, and what is to happen then.
pub(super) struct Step {
    pub report: Report,
    pub roll: f64,
    pub ending: Ending,
}

impl Step {
    fn lease(&self) -> &Lease {
        self.ending.work.grip.lease()
    }
}

/// Asks until each has an answer, or nobody waits for it any more.
pub(super) async fn finish(store: &Arc<dyn Store>, actor: &str, mut steps: Vec<Step>) {
    let (mut wait, mut most) = (WAITS.0, MOST);
    // Ends: each turn ends one at least (of those of one saga the first is not stale by the others), or the store comes back, or a lease is lost because it cannot be
    // renewed either.
    while !steps.is_empty() {
        steps = lose(store, actor, steps);
        let before = steps.len();
        match turn(store, actor, &mut steps, most).await {
            Ok(()) if steps.len() < before => (wait, most) = (WAITS.0, (2 * most).min(MOST)),
            // Others move the same sagas all the time.
            Ok(()) => tokio::time::sleep(MOMENT).await,
            // It would fail for ever. One of them may be to blame, and does not take the others with it.
            Err(error) if !error.retryable() => {
                measures::store_error(&error);
                match most.min(before) {
                    0 | 1 => give_up(steps.remove(0), &error),
                    several => most = several / 2,
                }
            }
            Err(error) => {
                tracing::warn!(class = class::of_error(&error), %error, steps = steps.len(), "steps of sagas wait for the store");
                measures::store_error(&error);
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(WAITS.1);
            }
        }
    }
}

/// Those whose leases are over are lost. A message that ends unsent does no harm, however late.
fn lose(store: &Arc<dyn Store>, actor: &str, steps: Vec<Step>) -> Vec<Step> {
    let now = Instant::now();
    let is_over = |step: &Step| {
        let sent = !matches!(step.report, Report::Released(_) | Report::Lapsed);
        sent && step.ending.work.grip.until() <= now
    };
    let (over, held): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_over);
    over.into_iter().for_each(|step| lost(store, actor, step));
    held
}

/// Loads, decides and settles some of them: those that have an answer leave the list.
async fn turn(store: &Arc<dyn Store>, actor: &str, steps: &mut Vec<Step>, most: usize) -> Result<(), Error> {
    if steps.is_empty() {
        return Ok(());
    }
    let asked = Instant::now();
    let some = steps.len().min(most);
    let ended = steps[..some].iter().map(|step| (step.lease(), &step.report, step.roll));
    let decided = drive::settlements(&**store, actor, ended.collect()).await?;
    let batch = decided.iter().filter_map(|decided| match decided {
        Decided::Settle(settlement) => Some((**settlement).clone()),
        Decided::Later | Decided::Broken(_) => None,
    });
    let batch: Vec<Settlement> = batch.collect();
    point("relay::before_settle").await;
    let verdicts = store.settle(&batch).await?;
    point("relay::after_settle").await;
    measures::phase("settle", asked.elapsed());
    let mut answers = batch.into_iter().zip(verdicts);
    let rest = steps.split_off(some);
    let mut left = Vec::new();
    for (step, decided) in steps.drain(..).zip(decided) {
        match decided {
            Decided::Later => left.push(step),
            Decided::Broken(error) => give_up(step, &error),
            Decided::Settle(_) => match answers.next() {
                None | Some((_, Verdict::Stale)) => left.push(step),
                Some((_, Verdict::LeaseLost)) => lost(store, actor, step),
                Some((settlement, verdict)) => {
                    if verdict.is_settled() {
                        measures::saga_moved(&settlement);
                    }
                    step.ending.ended(&End::of(&settlement), verdict);
                }
            },
        }
    }
    // Those that were not asked for come first the next time.
    steps.extend(rest);
    steps.extend(left);
    Ok(())
}

/// Nothing can be written of it.
fn give_up(step: Step, error: &Error) {
    tracing::error!(%error, id = %step.lease().id, "a saga cannot be read or written; the lease on its message is left to run out");
    step.ending.goes_on(Next::Fail);
}

/// Its lease was lost; but what was answered tells what happened, and the saga is told.
fn lost(store: &Arc<dyn Store>, actor: &str, step: Step) {
    let Some(engine) = step.ending.engine() else { return };
    let (store, actor) = (store.clone(), actor.to_owned());
    let Step { report, ending, .. } = step;
    let tasks = engine.tasks.clone();
    let telling = async move {
        let next = line::lost(&engine, &ending.work).await;
        if let Report::Sent(outcome) = &report {
            report_late(&*store, &actor, &ending, outcome, &engine.stopped).await;
        }
        ending.goes_on(next);
        engine.freed();
    };
    tasks.spawn(telling);
}

/// Goes on until the store hears, or the relay has ended.
async fn report_late(store: &dyn Store, actor: &str, ending: &Ending, outcome: &Outcome, stopped: &CancellationToken) {
    let (Some(saga), Some(ticket)) = (ending.work.grip.lease().saga, &ending.work.delivery.ticket) else {
        return;
    };
    let mut wait = WAITS.0;
    loop {
        match drive::report_late(store, saga, ticket, outcome, actor).await {
            Ok(change) => return change.iter().for_each(measures::saga_changed),
            Err(Error::NoSaga(_)) => return,
            Err(error) => {
                tracing::warn!(%saga, step = ticket.step, %error, "a late answer could not be told");
                if !error.retryable() {
                    return;
                }
            }
        }
        tokio::select! {
            biased;
            () = stopped.cancelled() => return,
            () = tokio::time::sleep(wait) => wait = (2 * wait).min(WAITS.1),
        }
    }
}
