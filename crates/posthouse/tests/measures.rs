//! What a relay measures of what it does, as Prometheus reads it.

use metrics_exporter_prometheus::PrometheusBuilder;
use posthouse::{
    Admin, Outcome, Relay, State,
    relay::{Destination, local_delivery},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::relay::{Running, all, numbered, put, store, until_all};

/// A message that is replayed has been sent for the first time before: it is a replay, and no first send.
#[tokio::test(start_paused = true)]
async fn a_replay_is_counted_once_and_is_no_first_send() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (memory, well) = (store(), Arc::new(AtomicBool::new(false)));
    let is_well = well.clone();
    let shop = local_delivery(move |_| {
        let well = is_well.load(Ordering::SeqCst);
        async move {
            if well {
                Outcome::delivered()
            } else {
                Outcome::reject("no", "not this one")
            }
        }
    });
    let relay = Relay::builder(Arc::new(memory.clone())).route("order.*", Destination::new("shop", shop));
    let relay = Running::start(relay);
    put(&memory, [numbered(1)]).await;
    until_all(&memory, State::Dead).await;
    well.store(true, Ordering::SeqCst);
    let id = all(&memory).await[0].id;
    memory.replay(id, "ops", "it is well", None).await.unwrap();
    until_all(&memory, State::Done).await;
    relay.stop().await;
    let measured = recorder.handle().render();
    for line in [
        "posthouse_replays_total{kind=\"message\"} 1\n",
        "posthouse_first_send_seconds_count{destination=\"shop\"} 1\n",
        "posthouse_claimed_total 2\n",
        "posthouse_dead_total{destination=\"shop\",reason=\"rejected\"} 1\n",
    ] {
        assert!(measured.contains(line), "{line}{measured}");
    }
}
