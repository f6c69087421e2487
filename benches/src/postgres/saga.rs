//! B15, the sagas' half: a step of a saga beside a plain message, each from its enqueue to its end.

use posthouse_core::{
    Claim, Lease, Message, Outcome, SagaId, Settlement, Store,
    ledger::Answer,
    saga::{
        Definition, Report as Said, Start,
        drive::{self, Decided},
    },
};
use posthouse_postgres::Outbox;
use std::time::Instant;
use uuid::Uuid;

use super::{BATCH, Bench, LEASE, RUNS, body, session};
use crate::report::{Bar, Report};

const SAGAS: usize = 3000;
const STEPS: usize = 3;
/// In one transaction of the producer.
const TOGETHER: usize = 1000;

fn trip() -> Definition {
    let step = |name: &str| {
        format!(
            r#"{{ "name": "{name}", "action_uri": "fn:{name}", "compensate_uri": "fn:{name}/undo", "idempotent": true }}"#
        )
    };
    let steps = ["flight", "hotel", "charge"].map(step).join(", ");
    Definition::parse(&format!(r#"{{ "name": "trip", "version": 1, "steps": [{steps}] }}"#)).unwrap()
}

impl Bench {
    pub async fn sagas(&self, report: &mut Report) {
        let (mut enqueues, mut starts, mut plain, mut steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            self.clear_sagas().await;
            enqueues.push(self.single_messages().await);
            self.clear_sagas().await;
            plain.push(self.plain_messages().await);
            self.clear_sagas().await;
            starts.push(self.saga_starts().await);
            steps.push(self.saga_steps().await);
            let done = "SELECT count(*) FROM posthouse.saga WHERE state = 'completed'";
            assert_eq!(self.count(done).await, SAGAS as i64, "verification failed: no number");
        }
        let work = format!(
            "saga: a step of {STEPS}, claimed, settled and the next one sent, against a plain message from its enqueue (in bulk) to its end"
        );
        report.compare("B15", &work, "/s", &plain, &steps, Bar::AtLeast(0.4));
        let work = format!("saga: its start against the enqueue of one message, {TOGETHER} calls in a transaction");
        report.compare("B15", &work, "/s", &enqueues, &starts, Bar::AtLeast(0.4));
    }

    async fn clear_sagas(&self) {
        self.clear().await;
        let sql = "TRUNCATE posthouse.saga, posthouse.saga_log; CHECKPOINT";
        self.control.batch_execute(sql).await.unwrap();
    }

    async fn plain_messages(&self) -> f64 {
        let (outbox, mut client) = (Outbox::default(), session(&self.url).await);
        let start = Instant::now();
        for chunk in 0..SAGAS * STEPS / TOGETHER {
            let mut tx = client.transaction().await.unwrap();
            let messages =
                (0..TOGETHER).map(|n| Message::bytes("bench", "application/json", body(chunk * TOGETHER + n)));
            outbox.enqueue_all(&mut tx, messages.collect()).await.unwrap();
            tx.commit().await.unwrap();
        }
        while let Some(leases) = self.claimed().await {
            let batch: Vec<_> = leases.iter().map(|lease| Settlement::delivered(lease, None)).collect();
            let verdicts = self.store.settle(&batch).await.unwrap();
            assert!(verdicts.iter().all(|verdict| verdict.is_settled()));
        }
        (SAGAS * STEPS) as f64 / start.elapsed().as_secs_f64()
    }

    /// One call each, as a saga is started.
    async fn single_messages(&self) -> f64 {
        let (outbox, mut client) = (Outbox::default(), session(&self.url).await);
        let start = Instant::now();
        for chunk in 0..SAGAS / TOGETHER {
            let mut tx = client.transaction().await.unwrap();
            for n in 0..TOGETHER {
                let message = Message::bytes("bench", "application/json", body(chunk * TOGETHER + n));
                outbox.enqueue(&mut tx, message).await.unwrap();
            }
            tx.commit().await.unwrap();
        }
        SAGAS as f64 / start.elapsed().as_secs_f64()
    }

    async fn saga_starts(&self) -> f64 {
        let (outbox, mut client, trip) = (Outbox::default(), session(&self.url).await, trip());
        let start = Instant::now();
        for chunk in 0..SAGAS / TOGETHER {
            let mut tx = client.transaction().await.unwrap();
            for n in 0..TOGETHER {
                let (id, key) = (SagaId(Uuid::now_v7()), format!("k{}", chunk * TOGETHER + n));
                let one = Start::new(id, &trip, key, &"x".repeat(198));
                outbox.start(&mut tx, one.unwrap()).await.unwrap();
            }
            tx.commit().await.unwrap();
        }
        SAGAS as f64 / start.elapsed().as_secs_f64()
    }

    async fn saga_steps(&self) -> f64 {
        let start = Instant::now();
        let said = Said::Sent(Outcome::answered(Answer::bytes("\"booked\"")));
        while let Some(leases) = self.claimed().await {
            let ended = leases.iter().map(|lease| (lease, &said, 0.5));
            let decided = drive::settlements(&*self.store, "bench", ended.collect())
                .await
                .unwrap();
            let batch: Vec<Settlement> = decided
                .into_iter()
                .map(|decided| match decided {
                    Decided::Settle(settlement) => *settlement,
                    other => panic!("{other:?}"),
                })
                .collect();
            let verdicts = self.store.settle(&batch).await.unwrap();
            assert!(verdicts.iter().all(|verdict| verdict.is_settled()));
        }
        (SAGAS * STEPS) as f64 / start.elapsed().as_secs_f64()
    }

    async fn claimed(&self) -> Option<Vec<Lease>> {
        let claim = Claim::new("bench", BATCH, LEASE).together();
        let claimed = self.store.claim(&claim).await.unwrap();
        let leases: Vec<_> = claimed.into_iter().map(|claimed| claimed.lease).collect();
        (!leases.is_empty()).then_some(leases)
    }
}
