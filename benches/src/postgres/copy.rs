//! What B1 compares with: COPY by hand.

use tokio_postgres::{Client, types::Type};
use uuid::Uuid;

use super::body;

/// A thousand messages by two binary COPYs in one transaction, with numbers drawn ahead.
pub async fn a_thousand(client: &mut Client, from: usize) {
    let tx = client.transaction().await.unwrap();
    let seqs: Vec<i64> = tx
        .query_one(
            "SELECT array_agg(nextval('posthouse.message_seq_seq')) FROM generate_series(1, 1000)",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    let sink = tx.copy_in("COPY posthouse.message (seq, id, created_at, tenant, namespace, topic, content_type, payload, digest) FROM STDIN BINARY").await.unwrap();
    let types = [
        Type::INT8,
        Type::UUID,
        Type::TIMESTAMPTZ,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::BYTEA,
        Type::BYTEA,
    ];
    let writer = tokio_postgres::binary_copy::BinaryCopyInWriter::new(sink, &types);
    let mut writer = std::pin::pin!(writer);
    let now = std::time::SystemTime::now();
    for (i, seq) in seqs.iter().enumerate() {
        let bytes = body(from + i);
        let digest = posthouse_core::Digest::of("application/json", &bytes).0.to_vec();
        writer
            .as_mut()
            .write(&[
                seq,
                &Uuid::now_v7(),
                &now,
                &"",
                &"default",
                &"bench",
                &"application/json",
                &bytes,
                &digest,
            ])
            .await
            .unwrap();
    }
    writer.finish().await.unwrap();
    let sink = tx
        .copy_in("COPY posthouse.ready (lane, pos, seq, due_at, bytes, max_attempts) FROM STDIN BINARY")
        .await
        .unwrap();
    let types = [
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::TIMESTAMPTZ,
        Type::INT4,
        Type::INT2,
    ];
    let writer = tokio_postgres::binary_copy::BinaryCopyInWriter::new(sink, &types);
    let mut writer = std::pin::pin!(writer);
    for seq in &seqs {
        writer
            .as_mut()
            .write(&[&0i64, seq, seq, &now, &200i32, &12i16])
            .await
            .unwrap();
    }
    writer.finish().await.unwrap();
    tx.commit().await.unwrap();
}
