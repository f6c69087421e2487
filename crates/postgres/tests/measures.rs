//! What a producer's program counts.

use metrics_exporter_prometheus::PrometheusBuilder;
use posthouse_testkit::suite::tools::{message, offer, put_all};

use crate::fixture::PostgresFixture;

#[tokio::test]
async fn what_is_enqueued_is_counted_once() {
    let fx = PostgresFixture::new().await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    for _ in 0..2 {
        offer(&fx, message("a").dedupe_key("k")).await.unwrap();
    }
    put_all(&fx, vec![message("b"), message("c")]).await;
    let measured = recorder.handle().render();
    assert!(measured.contains("posthouse_enqueued_total 3\n"), "{measured}");
}
