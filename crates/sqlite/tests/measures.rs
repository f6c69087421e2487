//! What a producer's program counts.

use metrics_exporter_prometheus::PrometheusBuilder;
use posthouse_core::Message;
use posthouse_sqlite::{Outbox, Sqlite};
use rusqlite::Connection;
use tempfile::TempDir;

fn message(body: &str) -> Message {
    Message::bytes("orders", "text/plain", body)
}

#[test]
fn what_is_enqueued_is_counted_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    Sqlite::migrate(&path).unwrap();
    let mut db = Connection::open(&path).unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let (tx, outbox) = (db.transaction().unwrap(), Outbox::default());
        for _ in 0..2 {
            outbox.enqueue(&tx, message("a").dedupe_key("k")).unwrap();
        }
        outbox.enqueue_all(&tx, &[message("b"), message("c")]).unwrap();
        tx.commit().unwrap();
    });
    let measured = recorder.handle().render();
    assert!(measured.contains("posthouse_enqueued_total 3\n"), "{measured}");
}
