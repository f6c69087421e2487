//! What waited for a time and falls due: much at once, of many.

use posthouse_core::{Claim, Message, Store};
use posthouse_testkit::Fixture;
use std::{collections::BTreeSet, time::Duration};

use crate::fixture::{SurrealFixture, fresh};

const MINUTE: Duration = Duration::from_secs(60);

/// So many that wait for a minute.
fn delayed(count: usize) -> Vec<Message> {
    vec![Message::bytes("t", "text/plain", b"later".to_vec()).delay(MINUTE); count]
}

/// The tenants of those that are in their line, once for each message.
async fn in_line(fx: &SurrealFixture) -> Vec<String> {
    let ready = "SELECT VALUE record::id(id)[1] FROM posthouse_ready";
    let mut ready = fx.db.client().query(ready).await.unwrap();
    ready.take(0).unwrap()
}

/// Tenants share what one claim takes in, however many of them there are.
#[tokio::test]
async fn one_claim_takes_in_so_much_and_some_of_each_tenant() {
    let fx = fresh().await;
    let store = fx.open().await;
    let tenants: BTreeSet<_> = (0..20).map(|n| format!("t{n:02}")).collect();
    let first = delayed(700).into_iter().map(|message| message.tenant("a"));
    store.enqueue_now(first.collect()).await.unwrap();
    fx.advance(Duration::from_secs(1)).await;
    for tenant in &tenants {
        let some = delayed(100).into_iter().map(|message| message.tenant(tenant));
        store.enqueue_now(some.collect()).await.unwrap();
    }
    fx.advance(MINUTE * 2).await;
    let claim = Claim::new("w", 100, MINUTE);
    let granted = store.claim(&claim).await.unwrap();
    assert_eq!(granted.len(), 100);
    let ready = in_line(&fx).await;
    let taken_in = ready.len() + granted.len();
    assert!(taken_in <= 2 * 600, "{taken_in} fell due in one claim");
    let seen: BTreeSet<_> = ready.into_iter().collect();
    assert!(tenants.is_subset(&seen), "{seen:?}");
    fx.check().await;
}

/// A flood in one namespace of a tenant is not in the way of another namespace of his.
#[tokio::test]
async fn namespaces_share_what_falls_due() {
    let fx = fresh().await;
    let store = fx.open().await;
    let of = |namespace: &'static str, count| {
        let all = delayed(count).into_iter();
        all.map(|message| message.namespace(namespace).tenant("acme")).collect()
    };
    store.enqueue_now(of("a", 1100)).await.unwrap();
    store.enqueue_now(of("b", 1)).await.unwrap();
    fx.advance(MINUTE * 2).await;
    for claim in [
        Claim::new("w", 1, MINUTE * 10)
            .tenant("acme")
            .namespace("a")
            .namespace("b"),
        Claim::new("w", 1, MINUTE * 10).tenant("acme"),
    ] {
        let mut namespaces = Vec::new();
        for _ in 0..2 {
            let granted = store.claim(&claim).await.unwrap().remove(0);
            namespaces.push(granted.delivery.namespace);
        }
        assert!(namespaces.contains(&"b".to_owned()), "{namespaces:?}");
        store.enqueue_now(of("a", 1100)).await.unwrap();
        store.enqueue_now(of("b", 1)).await.unwrap();
        fx.advance(MINUTE * 2).await;
    }
    fx.check().await;
}
