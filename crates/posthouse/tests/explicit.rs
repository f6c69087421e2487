//! Topics that name their destination themselves; on the store in memory, in a time that moves when everybody sleeps.

use posthouse::{
    Admin, BreakerPolicy, Delivery, Invalid, Message, Outcome, Relay, State,
    relay::{Destination, local_delivery},
};
use posthouse_testkit::Memory;
use std::sync::{Arc, Mutex};
use tokio::time::sleep;

use crate::relay::{Running, SECOND, all, evidence, put, states, store, until_all};

type Sent = Arc<Mutex<Vec<String>>>;

/// Sends to names that begin with `shop`, except that `shop/down` is; nothing else may be named.
fn relay(store: &Memory, sent: &Sent) -> Relay {
    let sent = sent.clone();
    let maker = move |address: &str| {
        let Some(rest) = address.strip_prefix("shop/") else {
            return Err(Invalid::new("topic", "names a host that is not listed").into());
        };
        let (sent, rest) = (sent.clone(), rest.to_owned());
        let name = format!("shop#{}", rest.len());
        let take = move |_: Delivery| {
            let (sent, rest) = (sent.clone(), rest.clone());
            async move {
                sent.lock().unwrap().push(rest.clone());
                if rest == "down" {
                    return Outcome::retry("http_503", "not now");
                }
                Outcome::delivered()
            }
        };
        let breaker = BreakerPolicy {
            failures: 1,
            open: 600 * SECOND,
            cap: 600 * SECOND,
        };
        Ok(Destination::new(name, local_delivery(take)).breaker(breaker))
    };
    Relay::builder(Arc::new(store.clone())).explicit("to:", maker)
}

fn to(address: &str) -> Message {
    Message::json(format!("to:{address}"), &1).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_topic_may_name_what_is_allowed_and_nothing_else() {
    let (store, sent) = (store(), Sent::default());
    put(&store, [to("shop/a"), to("shop/*"), to("evil/secret"), to("shop/a")]).await;
    // A route for everything does not take what is refused.
    let all_else = local_delivery(|_| async {});
    let relay = Running::start(relay(&store, &sent).route("*", all_else));
    sleep(5 * SECOND).await;
    relay.stop().await;
    assert_eq!(
        states(&store).await,
        [State::Done, State::Done, State::Dead, State::Done]
    );
    let mut sent = sent.lock().unwrap().clone();
    sent.sort();
    assert_eq!(sent, ["*", "a", "a"]);
    let refused = evidence(&store, 2).await;
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].code.as_deref(), Some("not_allowed"));
    let error = refused[0].error.clone().unwrap();
    assert!(error.contains("not listed") && !error.contains("secret"), "{error}");
}

/// One that is down opens its own breaker, and is paused by its own name.
#[tokio::test(start_paused = true)]
async fn each_address_is_a_destination_of_its_own() {
    let (store, sent) = (store(), Sent::default());
    store.pause("shop#6", "anna", "a test").await.unwrap();
    let relay = Running::start(relay(&store, &sent));
    sleep(SECOND).await;
    put(&store, [to("shop/down"), to("shop/down")]).await;
    put(&store, [to("shop/paused"), to("shop/well"), to("shop/well")]).await;
    sleep(60 * SECOND).await;
    let done = |states: Vec<State>| states.iter().map(|s| *s == State::Done).collect::<Vec<_>>();
    assert_eq!(done(states(&store).await), [false, false, false, true, true]);
    assert!(!sent.lock().unwrap().contains(&"paused".to_owned()));
    let tries = sent.lock().unwrap().iter().filter(|rest| *rest == "down").count();
    assert!(tries <= 2, "{tries} sends to what is down");
    assert!(all(&store).await.iter().all(|m| m.epoch < 5));
    let told = store.relays().await.unwrap();
    let told = &told[0].relay;
    assert_eq!(told.routes[0].topic, "to:*");
    assert!(told.destinations.iter().any(|health| health.destination == "shop#4"));
    store.resume("shop#6", "anna", "the test is over").await.unwrap();
    sleep(60 * SECOND).await;
    assert!(sent.lock().unwrap().contains(&"paused".to_owned()));
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_may_be_named_is_replaced_while_it_runs() {
    let (store, sent) = (store(), Sent::default());
    let relay = relay(&store, &sent);
    let control = relay.control();
    let relay = Running::start(relay);
    put(&store, [to("shop/a")]).await;
    until_all(&store, State::Done).await;
    let nothing = |_: &str| Err(Invalid::new("topic", "names nothing any more").into());
    control.replace_explicit(Some(("to:".to_owned(), nothing)));
    put(&store, [to("shop/a")]).await;
    sleep(5 * SECOND).await;
    assert_eq!(states(&store).await, [State::Done, State::Dead]);
    relay.stop().await;
}
