//! The reports of a relay in its heartbeat: deliveries, and topics without a route.

use posthouse::{
    Admin, Message, Relay,
    presence::{self, UnroutedTopic},
    relay::{Destination, local_delivery},
};
use std::sync::Arc;

use crate::relay::{Running, SECOND, numbered, put, store, until};

#[tokio::test(start_paused = true)]
async fn the_heartbeat_reports_deliveries_by_destination() {
    let store = store();
    let slow = |name: &str| {
        let take = local_delivery(|_| async { tokio::time::sleep(SECOND).await });
        Destination::new(name, take).concurrency(1)
    };
    let relay = Relay::builder(Arc::new(store.clone()));
    let relay = Running::start(relay.route("order.*", slow("shop")).route("mail.*", slow("mail")));
    put(&store, (0..120).map(numbered)).await;
    put(&store, (0..10).map(|n| Message::json("mail.due", &n).unwrap())).await;
    let told = async || store.relays().await.unwrap()[0].relay.deliveries.clone();
    tokio::time::sleep(100 * SECOND).await;
    let deliveries = told().await;
    assert_eq!((deliveries.destinations.len(), deliveries.more), (2, false));
    let [shop, mail] = &deliveries.destinations[..] else {
        panic!("{deliveries:?}")
    };
    assert_eq!((&*shop.destination, &*mail.destination), ("shop", "mail"));
    assert!((90..=100).contains(&shop.delivered), "{shop:?}");
    assert!((57..=60).contains(&shop.per_minute), "{shop:?}");
    assert_eq!(
        (mail.delivered, mail.per_minute),
        (10, 0),
        "it was idle for the last minute"
    );
    assert_eq!(deliveries.delivered, shop.delivered + mail.delivered);
    assert_eq!(deliveries.per_minute, shop.per_minute);
    let counts = store.counts().await.unwrap();
    let seconds = counts.seconds_to_empty(deliveries.per_minute).unwrap();
    assert!(
        seconds.exact && (15..=35).contains(&seconds.value),
        "{seconds:?} of {counts:?}"
    );
    relay.stop().await;
}

/// Behind 1,001 messages that wait for a destination that is stuck, too.
#[tokio::test(start_paused = true)]
async fn the_heartbeat_reports_topics_without_a_route() {
    let store = store();
    let stuck = local_delivery(|_| async { std::future::pending::<()>().await });
    let stuck = Destination::new("shop", stuck).concurrency(1);
    put(&store, (0..1001).map(numbered)).await;
    put(&store, [Message::json("invoice.sent", &1).unwrap().namespace("own")]).await;
    let relay = Relay::builder(Arc::new(store.clone()));
    let control = relay.control();
    let relay = Running::start(relay.route("order.*", stuck.clone()));
    let unrouted = async || presence::unrouted(&store.relays().await.unwrap()).topics;
    until(|| async { !unrouted().await.is_empty() }).await;
    let invoice = UnroutedTopic {
        namespace: "own".into(),
        topic: "invoice.sent".into(),
    };
    assert_eq!(unrouted().await, [invoice]);
    let mail = Destination::new("mail", local_delivery(|_| async {}));
    let routes = [("order.*", stuck), ("invoice.*", mail)];
    let routes = routes.map(|(topic, to)| (topic.to_owned(), to));
    control.replace_routes(routes.into()).unwrap();
    until(|| async { unrouted().await.is_empty() }).await;
    drop(relay);
}
