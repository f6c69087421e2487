//! What a store holds every producer to: it is kept in the store itself, and the owner of the store may change it.

use posthouse_core::{Error, Limits, Message, StoreSettings, Verdict};
use std::time::Duration;

use super::tools::*;
use crate::Fixture;

/// Stricter than usual.
pub fn strict() -> StoreSettings {
    StoreSettings {
        limits: Limits {
            payload_bytes: 1000,
            require_tenant: true,
        },
        max_attempts: 3,
        dedupe_lifetime: Some(DAY * 2),
    }
}

fn of(bytes: usize) -> Message {
    Message::bytes("orders", "text/plain", vec![b'x'; bytes]).tenant("acme")
}

async fn configured(fx: &dyn Fixture, settings: &StoreSettings) {
    fx.configure(settings).await.unwrap();
    assert_eq!(fx.settings().await, *settings);
}

/// The usual until somebody says otherwise; then that, for messages one by one and in bulk.
pub async fn what_is_configured_holds_for_everybody(fx: &dyn Fixture) {
    assert_eq!(fx.settings().await, StoreSettings::default());
    configured(fx, &strict()).await;
    assert_eq!(field(offer(fx, of(1001)).await), "payload");
    assert_eq!(field(offer(fx, of(1).tenant("")).await), "tenant");
    for (bulk, refused) in [([of(2), of(1001)], "payload"), ([of(1), of(1).tenant("")], "tenant")] {
        let mut tx = fx.begin().await;
        assert_eq!(field(tx.enqueue_all(bulk.to_vec()).await), refused);
        tx.rollback().await;
    }
    assert_eq!(count(fx).await, 0);
    let ids = put_all(fx, vec![of(1000), of(1).max_attempts(9)]).await;
    let budgets = (view(fx, ids[0]).await.max_attempts, view(fx, ids[1]).await.max_attempts);
    assert_eq!(budgets, (3, 9));
    configured(fx, &StoreSettings::default()).await;
    put(fx, of(1001).tenant("")).await;
}

/// What is in the store stays as it is.
pub async fn what_is_configured_changes_no_message(fx: &dyn Fixture) {
    let id = put(fx, message("x")).await;
    let before = view(fx, id).await;
    configured(fx, &strict()).await;
    assert_eq!(view(fx, id).await, before);
    assert_eq!(claim_one(&*fx.store().await, "w1").await.lease.id, id);
}

/// A follow-up is a message like any other.
pub async fn a_follow_up_is_held_to_it_too(fx: &dyn Fixture) {
    let (store, lease) = (fx.store().await, put_and_claim(fx, message("x")).await);
    configured(fx, &strict()).await;
    for (follow_up, refused) in [(of(1001), "payload"), (of(1).tenant(""), "tenant")] {
        let verdict = settle(&*store, delivered(&lease).follow_ups(vec![follow_up])).await;
        assert!(
            matches!(&verdict, Verdict::Refused(Error::Invalid(invalid)) if invalid.field == refused),
            "{verdict:?}"
        );
    }
    settle_all(&*store, &[delivered(&lease).follow_ups(vec![of(1000)])]).await;
    let follow_up = claim_one(&*store, "w1").await.lease;
    assert_eq!(follow_up.standing.max_attempts, 3);
}

/// How long a dedupe key is taken after the end of a message that was enqueued since.
pub async fn a_dedupe_lifetime_that_is_configured(fx: &dyn Fixture) {
    let deduped = || of(1).dedupe_key("d");
    // The one that leaves a new message behind is the last: the others claim what they have put.
    for (lifetime, day, free) in [(None, 3000, false), (Some(DAY * 2), 1, false), (Some(DAY * 2), 3, true)] {
        let dedupe_lifetime = lifetime;
        configured(
            fx,
            &StoreSettings {
                dedupe_lifetime,
                ..strict()
            },
        )
        .await;
        let tenant = format!("{lifetime:?} {day}");
        let id = put_done(fx, deduped().tenant(&*tenant)).await;
        fx.advance(DAY * day).await;
        let again = offer(fx, deduped().tenant(&*tenant)).await.unwrap().id();
        assert_eq!(again != id, free, "{day} days of {lifetime:?}");
    }
}

/// What no store can keep: nothing is changed by it.
pub async fn senseless_settings_are_refused(fx: &dyn Fixture) {
    configured(fx, &strict()).await;
    let before = fx.dump().await;
    let attempts = |max_attempts| StoreSettings {
        max_attempts,
        ..strict()
    };
    let huge = StoreSettings {
        limits: Limits {
            payload_bytes: Limits::HARD_PAYLOAD_BYTES + 1,
            ..strict().limits
        },
        ..strict()
    };
    let endless = StoreSettings {
        dedupe_lifetime: Some(Duration::MAX),
        ..strict()
    };
    for (senseless, refused) in [
        (attempts(0), "max_attempts"),
        (attempts(Limits::ATTEMPTS + 1), "max_attempts"),
        (huge, "payload_bytes"),
        (endless, "dedupe_lifetime"),
    ] {
        assert_eq!(field(fx.configure(&senseless).await), refused);
    }
    assert_eq!(fx.settings().await, strict());
    assert_unchanged(fx, &before, "refused settings").await;
}
