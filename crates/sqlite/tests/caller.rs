//! An application's transaction. `rusqlite::Transaction` cannot leave its thread, so it lives on one of its own.

use async_trait::async_trait;
use posthouse_core::{
    Enqueued, Error, Message, MessageId, Settlement, Verdict,
    ledger::{Conclusion, Fenced, Hold},
    saga::{Doing, Start, Started, Undoing},
};
use posthouse_sqlite::{Options, Outbox};
use posthouse_testkit::Caller;
use rusqlite::{Transaction, TransactionBehavior};
use std::{path::PathBuf, sync::mpsc, thread, time::Duration};
use tokio::sync::oneshot;

use crate::fixture::connect;

type Order = Box<dyn FnOnce(&Transaction<'_>, &Outbox) + Send>;

pub struct SqliteCaller {
    orders: mpsc::Sender<Order>,
    /// Commits when told, and rolls back when the other end is dropped.
    commit: oneshot::Sender<oneshot::Sender<Result<(), Error>>>,
    ended: oneshot::Receiver<()>,
}

impl SqliteCaller {
    pub async fn begin(path: PathBuf) -> Self {
        let (orders, received) = mpsc::channel();
        let (commit, told) = oneshot::channel();
        let (begun, ready) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        thread::spawn(move || {
            let mut db = connect(&path);
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            begun.send(()).unwrap();
            work(tx, received, told);
            drop(db);
            // The test may be over.
            let _ = end.send(());
        });
        ready.await.unwrap();
        Self { orders, commit, ended }
    }

    async fn order<T: Send + 'static>(&self, order: impl FnOnce(&Transaction<'_>, &Outbox) -> T + Send + 'static) -> T {
        let (send, answer) = oneshot::channel();
        let order: Order = Box::new(move |tx, outbox| drop(send.send(order(tx, outbox))));
        self.orders.send(order).unwrap();
        answer.await.unwrap()
    }
}

fn work(
    tx: Transaction<'_>,
    orders: mpsc::Receiver<Order>,
    mut commit: oneshot::Receiver<oneshot::Sender<Result<(), Error>>>,
) {
    let outbox = Outbox::new(Options::default());
    for order in orders {
        order(&tx, &outbox);
    }
    match commit.try_recv() {
        Ok(answer) => {
            let committed = tx.commit().map_err(|error| Error::Unavailable(error.into()));
            answer.send(committed).unwrap();
        }
        Err(_) => tx.rollback().unwrap(),
    }
}

#[async_trait]
impl Caller for SqliteCaller {
    async fn note(&mut self, line: &str) {
        let line = line.to_owned();
        self.order(move |tx, _| tx.execute("INSERT INTO test_note VALUES (?1)", [line]).unwrap())
            .await;
    }

    async fn enqueue(&mut self, message: Message) -> Result<Enqueued, Error> {
        self.order(move |tx, outbox| outbox.enqueue(tx, &message)).await
    }

    async fn enqueue_all(&mut self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        self.order(move |tx, outbox| outbox.enqueue_all(tx, &messages)).await
    }

    async fn settle_in(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        let settlement = settlement.clone();
        self.order(move |tx, outbox| outbox.settle_in(tx, &settlement)).await
    }

    async fn conclude_in(&mut self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        let (hold, conclusion) = (hold.clone(), conclusion.clone());
        self.order(move |tx, outbox| outbox.conclude_in(tx, &hold, &conclusion))
            .await
    }

    async fn leave_in(&mut self, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        let hold = hold.clone();
        self.order(move |tx, outbox| outbox.leave_in(tx, &hold, message)).await
    }

    async fn reach_in(&mut self, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        let (hold, checkpoint) = (hold.clone(), checkpoint.to_owned());
        self.order(move |tx, outbox| outbox.reach_in(tx, &hold, &checkpoint))
            .await
    }

    async fn renew_in(&mut self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        let hold = hold.clone();
        self.order(move |tx, outbox| outbox.renew_in(tx, &hold, lease)).await
    }

    async fn once(&mut self, consumer: &str, id: MessageId) -> Result<bool, Error> {
        let consumer = consumer.to_owned();
        self.order(move |tx, outbox| outbox.once(tx, &consumer, id)).await
    }

    async fn start(&mut self, start: Start) -> Result<Started, Error> {
        self.order(move |tx, outbox| outbox.start(tx, start)).await
    }

    async fn do_once(&mut self, consumer: &str, key: &str) -> Result<Doing, Error> {
        let (consumer, key) = (consumer.to_owned(), key.to_owned());
        self.order(move |tx, outbox| outbox.do_once(tx, &consumer, &key)).await
    }

    async fn undo_once(&mut self, consumer: &str, key: &str) -> Result<Undoing, Error> {
        let (consumer, key) = (consumer.to_owned(), key.to_owned());
        self.order(move |tx, outbox| outbox.undo_once(tx, &consumer, &key))
            .await
    }

    async fn commit(self: Box<Self>) -> Result<(), Error> {
        let (send, answer) = oneshot::channel();
        self.commit.send(send).unwrap();
        drop(self.orders);
        let committed = answer.await.unwrap();
        self.ended.await.unwrap();
        committed
    }

    async fn rollback(self: Box<Self>) {
        drop(self.commit);
        drop(self.orders);
        self.ended.await.unwrap();
    }
}
