//! B2: one message in a transaction of its own.

use posthouse_core::Message;
use posthouse_postgres::Outbox;
use std::time::Instant;
use tokio_postgres::{
    NoTls,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::{Bench, RUNS, body};
use crate::{
    raw,
    report::{Bar, Report},
};

impl Bench {
    pub async fn single_enqueue(&self, report: &mut Report) {
        const N: usize = 600;
        let (mut named, mut unnamed, mut ours, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let manager = deadpool_postgres::Manager::new(self.url.parse().unwrap(), NoTls);
        let pool = deadpool_postgres::Pool::builder(manager).max_size(1).build().unwrap();
        let mut client = pool.get().await.unwrap();
        let insert = client.prepare(raw::ONE).await.unwrap();
        let ready = client.prepare(raw::ONE_READY).await.unwrap();
        for _ in 0..RUNS {
            for (outbox, into) in [
                (Outbox::default(), &mut ours),
                (Outbox::default().keep_statements(), &mut kept),
            ] {
                self.clear().await;
                let start = Instant::now();
                for n in 0..N {
                    let mut tx = client.transaction().await.unwrap();
                    let message = Message::bytes("bench", "application/json", body(n));
                    outbox.enqueue(&mut tx, message).await.unwrap();
                    tx.commit().await.unwrap();
                }
                into.push(N as f64 / start.elapsed().as_secs_f64());
                assert_eq!(self.count("SELECT count(*) FROM posthouse.ready").await, N as i64);
            }
            for (by_name, into) in [(true, &mut named), (false, &mut unnamed)] {
                self.clear().await;
                let start = Instant::now();
                for n in 0..N {
                    let tx = client.transaction().await.unwrap();
                    let (id, bytes) = (Uuid::now_v7(), body(n));
                    let digest = posthouse_core::Digest::of("application/json", &bytes).0.to_vec();
                    if by_name {
                        let row = tx.query_one(&insert, &[&id, &bytes, &digest]).await.unwrap();
                        tx.execute(&ready, &[&row.get::<_, i64>(0)]).await.unwrap();
                    } else {
                        let args: [(&(dyn ToSql + Sync), Type); 3] =
                            [(&id, Type::UUID), (&bytes, Type::BYTEA), (&digest, Type::BYTEA)];
                        let rows = tx.query_typed(raw::ONE, &args).await.unwrap();
                        let seq: i64 = rows[0].get(0);
                        tx.query_typed(raw::ONE_READY, &[(&seq, Type::INT8)]).await.unwrap();
                    }
                    tx.commit().await.unwrap();
                }
                into.push(N as f64 / start.elapsed().as_secs_f64());
                assert_eq!(self.count("SELECT count(*) FROM posthouse.ready").await, N as i64);
            }
        }
        for (what, reference, ours) in [
            (
                "one message, its statement kept, against two prepared INSERTs",
                &named,
                &kept,
            ),
            (
                "one message, nothing kept, against two INSERTs without names",
                &unnamed,
                &ours,
            ),
            ("one message, nothing kept, against two prepared INSERTs", &named, &ours),
        ] {
            report.compare("B2", what, "/s", reference, ours, Bar::AtLeast(0.85));
        }
    }
}
