//! The worker itself, so that a test can run it too.

use posthouse::{
    Claim, Claimed, Outcome, RetryPolicy, Settlement, Store,
    postgres::{Outbox, Postgres},
    repair,
};
use sqlx::{PgPool, Row};
use std::{collections::HashSet, time::Duration};

/// Whatever went wrong.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One worker, and the run of the example that it works for.
pub struct Worker {
    store: Postgres,
    /// The service's own connections: to the rail, which is only played by a function, and for its own change.
    pool: PgPool,
    outbox: Outbox,
    name: String,
    run: String,
}

/// What a message tells.
#[derive(serde::Deserialize)]
struct Payment {
    reference: String,
    account: String,
    amount: i32,
}

impl Worker {
    /// A worker on the database of this URL.
    pub async fn connect(url: &str, name: &str, run: &str) -> Result<Self, Failure> {
        Ok(Self {
            store: Postgres::connect(url).await?,
            pool: PgPool::connect(url).await?,
            outbox: Outbox::default(),
            name: name.to_owned(),
            run: run.to_owned(),
        })
    }

    /// Works until nothing is left, or with `once` until nothing is due.
    pub async fn work(&self, once: bool, tell: impl Fn(String)) -> Result<(), Failure> {
        let claim = Claim::new(&self.name, 2, Duration::from_secs(30))
            .namespace("payment_dispatch")
            .tenant(&self.run);
        loop {
            repair(&self.store, 100).await?;
            let batch = self.store.claim(&claim).await?;
            let empty = batch.is_empty();
            let mut waiting = HashSet::new();
            for claimed in batch {
                // When one goes back, the later ones of its account went back with it: sending them would break their order.
                if !waiting.contains(&claimed.delivery.order_key) && !self.handle(&claimed, &tell).await? {
                    waiting.insert(claimed.delivery.order_key);
                }
            }
            if empty && (once || self.nothing_left().await?) {
                return Ok(());
            }
            if empty {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Sends one payment and reports. Answers whether the later ones of its account may be sent.
    async fn handle(&self, claimed: &Claimed, tell: impl Fn(String)) -> Result<bool, Failure> {
        let payment: Payment = serde_json::from_slice(&claimed.delivery.payload)?;
        let (answer, outcome) = self.send(&payment).await?;
        // The chance for the jitter of a retry; a relay has a better source of it.
        let roll = f64::from(claimed.lease.token.0.as_bytes()[15]) / 255.0;
        let settlement = Settlement::of(&claimed.lease, outcome, &RetryPolicy::default(), roll);
        let settled = self.report(&payment, &settlement).await?;
        let state = settlement.step.standing.state;
        let verdict = if settled {
            format!("attempt {}: {answer} -> {state}", claimed.delivery.attempt)
        } else {
            self.store.record_conflict(&claimed.lease, &self.name).await?;
            format!("P7002: the lease on message {} is lost", claimed.lease.id)
        };
        tell(format!(
            "{:9} {} {:8} {verdict}",
            self.name, payment.reference, payment.account
        ));
        Ok(settled && !settlement.stops_run())
    }

    /// Outside of any transaction of ours.
    async fn send(&self, payment: &Payment) -> Result<(String, Outcome), Failure> {
        let row = sqlx::query("SELECT answer, receipt FROM payment_dispatch.rail($1, $2, $3, $4)")
            .bind(&payment.reference)
            .bind(&payment.account)
            .bind(payment.amount)
            .bind(&self.name)
            .fetch_one(&self.pool)
            .await?;
        let (answer, receipt): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        let outcome = match answer.as_str() {
            "booked" | "booked before" => Outcome::Delivered { receipt, answer: None },
            "busy" => Outcome::Retry {
                after: None,
                code: "RAIL_BUSY".to_owned(),
                error: "the rail is busy".to_owned(),
            },
            _ => Outcome::Reject {
                code: "RAIL_REFUSED".to_owned(),
                error: "the account is closed".to_owned(),
            },
        };
        Ok((answer, outcome))
    }

    /// The end of the attempt and our own change, in one transaction. Whoever lost the lease changes neither.
    async fn report(&self, payment: &Payment, settlement: &Settlement) -> Result<bool, Failure> {
        let mut tx = self.pool.begin().await?;
        if !self.outbox.settle_in(&mut tx, settlement).await?.is_settled() {
            return Ok(false);
        }
        let state = match settlement.step.standing.state {
            posthouse::State::Done => Some("booked"),
            posthouse::State::Dead => Some("refused"),
            _ => None,
        };
        if let Some(state) = state {
            sqlx::query("UPDATE payment_dispatch.payment SET state = $1, receipt = $2 WHERE reference = $3")
                .bind(state)
                .bind(&settlement.receipt)
                .bind(&payment.reference)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(true)
    }

    async fn nothing_left(&self) -> Result<bool, Failure> {
        let left: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM posthouse.backlog WHERE namespace = 'payment_dispatch' AND tenant = $1",
        )
        .bind(&self.run)
        .fetch_one(&self.pool)
        .await?;
        Ok(left == 0)
    }
}
