//! B15, the ledger's half: begin something under a key, and finish it.

use futures_util::future::join_all;
use posthouse_core::{
    Store,
    ledger::{Answer, Begin, Begun, Conclusion, EntryKey, Fenced, Fingerprint, Keep},
};
use posthouse_postgres::{Options, Postgres};
use std::{sync::Arc, time::Instant};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::{Bench, RUNS, session};
use crate::report::{Bar, Report};

/// Each by itself, and as many side by side.
const SIDE_BY_SIDE: [usize; 2] = [1, 8];
const N: usize = 800;

/// By hand: whoever inserts it goes on, and ends it if it is still his. No takeover, no answer to others.
const BEGIN: &str = "
INSERT INTO posthouse.ledger (tenant, scope, key, fingerprint, status, token, lease_until, retention, created_at, updated_at, expires_at)
VALUES ('', 'bench', $1, $2, 0, $3, clock_timestamp() + interval '30 s', interval '1 day', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 day')
ON CONFLICT DO NOTHING";
const FINISH: &str = "
UPDATE posthouse.ledger SET status = 1, lease_until = NULL, http_status = 201, result = $3, result_digest = $4, updated_at = clock_timestamp(), expires_at = clock_timestamp() + retention
WHERE tenant = '' AND scope = 'bench' AND key = $1 AND token = $2 AND status = 0 AND lease_until > clock_timestamp()";

fn answer() -> Answer {
    Answer::bytes("x".repeat(200)).status(201)
}

impl Bench {
    pub async fn ledger(&self, report: &mut Report) {
        for many in SIDE_BY_SIDE {
            let (mut named, mut unnamed, mut ours) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..RUNS {
                self.empty_ledger().await;
                ours.push(self.ledger_ours(many).await);
                self.verify_ledger(many).await;
                for (by_name, into) in [(true, &mut named), (false, &mut unnamed)] {
                    self.empty_ledger().await;
                    into.push(self.ledger_raw(many, by_name).await);
                    self.verify_ledger(many).await;
                }
            }
            for (reference, words) in [(&named, "prepared"), (&unnamed, "without names")] {
                let work = format!("ledger: begin and finish, {many} at a time, against INSERT and UPDATE {words}");
                report.compare("B15", &work, "/s", reference, &ours, Bar::AtLeast(0.6));
            }
        }
    }

    async fn empty_ledger(&self) {
        self.control
            .batch_execute("TRUNCATE posthouse.ledger; CHECKPOINT")
            .await
            .unwrap();
    }

    /// All succeeded, each with its answer.
    async fn verify_ledger(&self, many: usize) {
        let sql = "SELECT count(*) FROM posthouse.ledger WHERE status = 1 AND octet_length(result) = 200 AND lease_until IS NULL";
        assert_eq!(self.count(sql).await, (many * N) as i64);
    }

    async fn ledger_ours(&self, many: usize) -> f64 {
        let options = Options {
            connections: many,
            ..Options::default()
        };
        let store = Arc::new(Postgres::open(&self.url, options).unwrap());
        let start = Instant::now();
        let tasks = (0..many).map(|worker| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..N {
                    let print = Fingerprint::of_bytes(&n.to_be_bytes());
                    let ask = Begin::new(EntryKey::new("bench", format!("{worker}-{n}")), print);
                    let Begun::Acquired(hold) = store.begin(&ask).await.unwrap() else {
                        panic!("somebody else has it")
                    };
                    let end = Conclusion::Succeeded(answer().kept(Keep::default()));
                    assert_eq!(store.conclude(&hold, &end).await.unwrap(), Fenced::Done);
                }
            })
        });
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
        (many * N) as f64 / start.elapsed().as_secs_f64()
    }

    async fn ledger_raw(&self, many: usize, by_name: bool) -> f64 {
        let mut clients = Vec::new();
        for _ in 0..many {
            let client = session(&self.url).await;
            let begin = client.prepare(BEGIN).await.unwrap();
            let finish = client.prepare(FINISH).await.unwrap();
            clients.push((client, begin, finish));
        }
        let start = Instant::now();
        let tasks = clients
            .into_iter()
            .enumerate()
            .map(|(worker, (client, begin, finish))| {
                tokio::spawn(async move {
                    for n in 0..N {
                        let print = Fingerprint::of_bytes(&n.to_be_bytes()).0.0.to_vec();
                        let (key, token) = (format!("{worker}-{n}"), Uuid::new_v4());
                        let kept = answer().kept(Keep::default());
                        let (body, digest) = (kept.body.unwrap(), kept.digest.unwrap().0.to_vec());
                        if by_name {
                            let begun = client.execute(&begin, &[&key, &print, &token]).await.unwrap();
                            let ended = client.execute(&finish, &[&key, &token, &body, &digest]).await.unwrap();
                            assert_eq!((begun, ended), (1, 1));
                        } else {
                            let args: [(&(dyn ToSql + Sync), Type); 3] =
                                [(&key, Type::TEXT), (&print, Type::BYTEA), (&token, Type::UUID)];
                            client.query_typed(BEGIN, &args).await.unwrap();
                            let args: [(&(dyn ToSql + Sync), Type); 4] = [
                                (&key, Type::TEXT),
                                (&token, Type::UUID),
                                (&body, Type::BYTEA),
                                (&digest, Type::BYTEA),
                            ];
                            client.query_typed(FINISH, &args).await.unwrap();
                        }
                    }
                })
            });
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
        (many * N) as f64 / start.elapsed().as_secs_f64()
    }
}
