//! Settlements on their way to the store: gathered for a moment, so that one call ends many leases.

use posthouse_core::{Settlement, Store, Verdict, class};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::{measures, points::point};

/// The most that one call settles.
const MOST: usize = 500;
/// How long the first waits for others.
const MOMENT: Duration = Duration::from_millis(2);
/// The most calls at a time, where the store can do several: while one waits for the disk, another is at work.
const CALLS: usize = 2;
/// The wait after a call that failed; it doubles up to the second.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

type Order = (Box<Settlement>, oneshot::Sender<Verdict>);

/// Where lines hand in what became of their messages.
#[derive(Clone)]
pub(super) struct Settler(mpsc::Sender<Order>);

impl Settler {
    /// Starts one. Its task ends when all handles are gone and everything is answered.
    pub fn start(store: Arc<dyn Store>) -> (Self, JoinHandle<()>) {
        let (orders, received) = mpsc::channel(2 * MOST);
        (Self(orders), tokio::spawn(work(store, received)))
    }

    /// Answers when the store has. A caller that no longer holds the lease stops waiting, and its settlement is forgotten.
    pub async fn settle(&self, settlement: Box<Settlement>) -> Option<Verdict> {
        let (answer, answered) = oneshot::channel();
        self.0.send((settlement, answer)).await.ok()?;
        answered.await.ok()
    }
}

async fn work(store: Arc<dyn Store>, mut orders: mpsc::Receiver<Order>) {
    let most = if store.capabilities().parallel_callers {
        CALLS
    } else {
        1
    };
    let mut calls = JoinSet::new();
    while let Some(batch) = gather(&mut orders).await {
        calls.spawn(finish(store.clone(), batch));
        if calls.len() >= most {
            calls.join_next().await;
        }
    }
    while calls.join_next().await.is_some() {}
}

async fn gather(orders: &mut mpsc::Receiver<Order>) -> Option<Vec<Order>> {
    let mut batch = vec![orders.recv().await?];
    let moment = tokio::time::sleep(MOMENT);
    tokio::pin!(moment);
    while batch.len() < MOST {
        tokio::select! {
            biased;
            next = orders.recv() => match next {
                Some(order) => batch.push(order),
                None => break,
            },
            () = &mut moment => break,
        }
    }
    Some(batch)
}

/// Asks until there is an answer, or nobody waits for it any more. To repeat a settlement that has won is answered the same.
async fn finish(store: Arc<dyn Store>, batch: Vec<Order>) {
    let mut wait = WAITS.0;
    let (mut settlements, mut answers): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|(settlement, answer)| (*settlement, answer))
        .unzip();
    loop {
        if answers.iter().any(oneshot::Sender::is_closed) {
            let waited_for = settlements.into_iter().zip(answers);
            (settlements, answers) = waited_for.filter(|(_, answer)| !answer.is_closed()).unzip();
        }
        if answers.is_empty() {
            return;
        }
        let asked = Instant::now();
        point("relay::before_settle").await;
        match store.settle(&settlements).await {
            Ok(verdicts) => {
                point("relay::after_settle").await;
                measures::phase("settle", asked.elapsed());
                for (answer, verdict) in answers.into_iter().zip(verdicts) {
                    // Who has stopped waiting does not want to know.
                    let _ = answer.send(verdict);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(class = class::of_error(&error), %error, settlements = settlements.len(), "settlements wait for the store");
                measures::store_error(&error);
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(WAITS.1);
            }
        }
    }
}
