//! P7, P9 and the operator's hand: every verb on every state, once, recorded.

use async_trait::async_trait;
use posthouse_core::{Admin, AuditFilter, DeadReason, Error, Filter, Limits, MessageId, OnDead, State};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use uuid::Uuid;

use super::tools::*;
use crate::Fixture;

/// The five verbs, to be asked of any message.
const VERBS: [&str; 5] = ["replay", "quarantine", "cancel", "resolve", "discard"];

/// Any verb by its name.
#[async_trait]
trait Act {
    async fn act(&self, verb: &str, id: MessageId, actor: &str, why: &str) -> Result<(), Error>;
}

#[async_trait]
impl Act for Arc<dyn Admin> {
    async fn act(&self, verb: &str, id: MessageId, actor: &str, why: &str) -> Result<(), Error> {
        match verb {
            "replay" => self.replay(id, actor, why, None).await,
            "quarantine" => self.quarantine(id, actor, why).await,
            "cancel" => self.cancel(id, actor, why).await,
            "resolve" => self.resolve(id, actor, why, "").await,
            "discard" => self.discard(id, actor, why).await,
            other => panic!("there is no verb {other}"),
        }
    }
}

/// One message in every state.
async fn one_of_each(fx: &dyn Fixture) -> Vec<(State, MessageId)> {
    let done = put_done(fx, message("done")).await;
    let dead = put_dead(fx, message("dead")).await;
    let quarantined = put(fx, message("quarantined")).await;
    fx.admin().await.quarantine(quarantined, "op", "hold").await.unwrap();
    let leased = put_and_claim(fx, message("leased")).await.id;
    let pending = put(fx, message("pending")).await;
    vec![
        (State::Pending, pending),
        (State::Leased, leased),
        (State::Done, done),
        (State::Dead, dead),
        (State::Quarantined, quarantined),
    ]
}

/// Asserts that `verb` is refused, without any change, in every state but these, and works in these.
async fn assert_applies_only_to(fx: &dyn Fixture, verb: &'static str, legal: &[State]) {
    let admin = fx.admin().await;
    for (state, id) in one_of_each(fx).await {
        let before = fx.dump().await;
        let answer = admin.act(verb, id, "op", "why").await;
        if legal.contains(&state) {
            assert!(answer.is_ok(), "{verb} of a {state} message: {answer:?}");
            continue;
        }
        match answer {
            Err(Error::IllegalState {
                id: named,
                state: found,
                verb: said,
            }) => {
                assert_eq!((named, found, said), (id, state, verb));
            }
            other => panic!("{verb} of a {state} message was answered {other:?}"),
        }
        assert_unchanged(fx, &before, verb).await;
    }
}

/// P9.
pub async fn replay_applies_only_to_dead_and_quarantined(fx: &dyn Fixture) {
    assert_applies_only_to(fx, "replay", &[State::Dead, State::Quarantined]).await;
}

/// Pending and dead messages can be held.
pub async fn quarantine_applies_only_to_pending_and_dead(fx: &dyn Fixture) {
    assert_applies_only_to(fx, "quarantine", &[State::Pending, State::Dead]).await;
}

/// What is pending or held can be given up.
pub async fn cancel_applies_only_to_pending_and_quarantined(fx: &dyn Fixture) {
    assert_applies_only_to(fx, "cancel", &[State::Pending, State::Quarantined]).await;
}

/// Whatever is not done and in nobody's hands can be declared delivered.
pub async fn resolve_applies_to_all_but_leased_and_done(fx: &dyn Fixture) {
    assert_applies_only_to(fx, "resolve", &[State::Pending, State::Dead, State::Quarantined]).await;
}

/// Only what ended without delivery can be removed by hand.
pub async fn discard_applies_only_to_dead_and_quarantined(fx: &dyn Fixture) {
    assert_applies_only_to(fx, "discard", &[State::Dead, State::Quarantined]).await;
}

/// Every verb says so, and looking is no error.
pub async fn a_missing_message_is_not_found(fx: &dyn Fixture) {
    let (admin, id) = (fx.admin().await, MessageId(Uuid::now_v7()));
    for verb in VERBS {
        let answer = admin.act(verb, id, "op", "why").await;
        assert!(
            matches!(&answer, Err(Error::NotFound(found)) if *found == id),
            "{verb}: {answer:?}"
        );
    }
    assert_eq!(admin.find(id).await.unwrap(), None);
    assert!(admin.attempts(id).await.unwrap().is_empty());
    assert!(admin.audit(&AuditFilter::of(id)).await.unwrap().is_empty());
}

/// P7. Nobody changes a message without a name.
pub async fn an_operator_without_a_name_is_refused(fx: &dyn Fixture) {
    let id = put_dead(fx, message("42")).await;
    let (admin, before) = (fx.admin().await, fx.dump().await);
    for verb in VERBS {
        match admin.act(verb, id, "", "why").await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "actor"),
            other => panic!("{verb}: {other:?}"),
        }
    }
    assert_unchanged(fx, &before, "a refused operator").await;
}

/// P7. Who, what, when and why, of each verb; newest first, of one message or of all, as many as asked.
pub async fn every_change_is_in_the_audit(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let id = put_dead(fx, message("42")).await;
    let mut expected = Vec::new();
    for verb in ["quarantine", "replay", "quarantine", "cancel", "discard"] {
        fx.advance(SECOND).await;
        admin.act(verb, id, "ada", &format!("because of {verb}")).await.unwrap();
        expected.insert(
            0,
            (
                fx.now().await,
                "ada".to_owned(),
                verb.to_owned(),
                format!("because of {verb}"),
            ),
        );
    }
    let other = put(fx, message("43")).await;
    admin.resolve(other, "bob", "seen in the log", "").await.unwrap();
    let found = admin.audit(&AuditFilter::of(id)).await.unwrap();
    let lines: Vec<_> = found.into_iter().map(|a| (a.at, a.actor, a.action, a.note)).collect();
    assert_eq!(lines, expected);
    let two = AuditFilter {
        limit: 2,
        ..AuditFilter::default()
    };
    let newest = admin.audit(&two).await.unwrap();
    let ids: Vec<_> = newest.iter().map(|a| (a.id, a.action.as_str())).collect();
    assert_eq!(ids, [(Some(other), "resolve"), (Some(id), "discard")]);
    assert_eq!(newest[0].note, "seen in the log");
}

/// Whatever a person or a script types is recorded, cleaned and cut.
pub async fn any_operator_text_can_be_recorded(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let admin = fx.admin().await;
    let raw = "a\0b\n'; --".to_owned() + &"€".repeat(5000);
    admin.quarantine(id, &raw, &raw).await.unwrap();
    let clean = posthouse_core::text::excerpt(&raw, 512);
    let audit = admin.audit(&AuditFilter::of(id)).await.unwrap();
    assert_eq!((&audit[0].actor, &audit[0].note), (&clean, &clean));
    assert_eq!(view(fx, id).await.note, Some(clean));
}

/// P9. A new budget and generation; the same identity, content and history; the epoch goes on rising.
pub async fn a_replay_begins_a_new_generation(fx: &dyn Fixture) {
    let id = put_dead(fx, message("42").max_attempts(1)).await;
    fx.advance(DAY).await;
    fx.admin().await.replay(id, "op", "fixed", None).await.unwrap();
    let found = view(fx, id).await;
    assert_eq!(
        (found.state, found.reason, found.due_at),
        (State::Pending, None, Some(fx.now().await))
    );
    assert_eq!((found.generation, found.attempts, found.epoch), (2, 0, 1));
    assert_eq!(found.finished_at, None);
    let again = claim_one(&*fx.store().await, "w1").await;
    let sent = &again.delivery;
    assert_eq!((sent.id, sent.generation, sent.attempt, sent.epoch), (id, 2, 1, 2));
    assert_eq!(bodies(std::slice::from_ref(&again)), ["42"]);
    assert_eq!(
        fx.admin().await.attempts(id).await.unwrap().len(),
        1,
        "the history is kept"
    );
}

/// P9.
pub async fn of_concurrent_replays_one_wins(fx: &dyn Fixture) {
    let id = put_dead(fx, message("42")).await;
    let mut rivals = Vec::new();
    for n in 0..8 {
        let admin = fx.admin().await;
        rivals.push(async move { admin.replay(id, &format!("op{n}"), "again", None).await });
    }
    let answers = at_once(rivals).await;
    let lost = |answer: &Result<(), Error>| {
        matches!(
            answer,
            Err(Error::IllegalState {
                state: State::Pending,
                ..
            })
        )
    };
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| lost(answer)).count(), 7, "{answers:?}");
    assert_eq!(view(fx, id).await.generation, 2);
    assert_eq!(fx.admin().await.audit(&AuditFilter::of(id)).await.unwrap().len(), 1);
}

/// P4. A worker from before the replay has nothing to say in the new generation.
pub async fn a_lease_from_before_the_replay_is_refused(fx: &dyn Fixture) {
    let stale = put_and_claim(fx, message("42").max_attempts(1)).await;
    assert_eq!(expire(fx).await, 1);
    fx.admin().await.replay(stale.id, "op", "again", None).await.unwrap();
    let before = fx.dump().await;
    assert!(settle(&*fx.store().await, delivered(&stale)).await.is_lost());
    assert_unchanged(fx, &before, "a lease from before the replay").await;
    let current = claim_one(&*fx.store().await, "w2").await.lease;
    let before = fx.dump().await;
    assert!(settle(&*fx.store().await, rejected(&stale)).await.is_lost());
    assert_unchanged(fx, &before, "a lease from before the replay").await;
    assert!(settle(&*fx.store().await, delivered(&current)).await.is_settled());
}

/// P9. A deliver-by that has passed is dropped, or the replay would lapse at once; one that is ahead is kept.
pub async fn a_replay_drops_a_deliver_by_that_has_passed(fx: &dyn Fixture) {
    let ahead = put_dead(fx, message("ahead").deliver_in(DAY * 9)).await;
    let deadline = fx.now().await.plus(DAY * 9);
    let passed = put_dead(fx, message("passed").deliver_in(DAY)).await;
    fx.advance(DAY * 2).await;
    let admin = fx.admin().await;
    admin.replay(ahead, "op", "again", None).await.unwrap();
    admin.replay(passed, "op", "again", None).await.unwrap();
    assert_eq!(view(fx, ahead).await.deliver_by, Some(deadline));
    assert_eq!(view(fx, passed).await.deliver_by, None);
    assert_eq!(claim(&*fx.store().await, "w1", 10).await.len(), 2);
}

/// P9. A new deliver-by counts from the replay.
pub async fn a_replay_may_set_a_new_deliver_by(fx: &dyn Fixture) {
    let id = put_dead(fx, message("42")).await;
    fx.admin()
        .await
        .replay(id, "op", "again", Some(SECOND * 60))
        .await
        .unwrap();
    assert_eq!(view(fx, id).await.deliver_by, Some(fx.now().await.plus(SECOND * 60)));
    fx.advance(SECOND * 61).await;
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
    let found = view(fx, id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Lapsed)));
}

/// A deliver-by that is over at once, or out of sight, is a mistake.
pub async fn a_senseless_replay_is_refused(fx: &dyn Fixture) {
    let id = put_dead(fx, message("42")).await;
    let before = fx.dump().await;
    for within in [Duration::ZERO, Limits::FARTHEST + SECOND, Duration::MAX] {
        let refused = fx.admin().await.replay(id, "op", "why", Some(within)).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(invalid)) if invalid.field == "deliver_in"),
            "{within:?}: {refused:?}"
        );
    }
    assert_unchanged(fx, &before, "a senseless replay").await;
    fx.admin()
        .await
        .replay(id, "op", "why", Some(Limits::FARTHEST))
        .await
        .unwrap();
}

/// P7. Claims, repairs and time do not move what has ended.
pub async fn only_an_operator_moves_a_terminal_message(fx: &dyn Fixture) {
    put_done(fx, message("done")).await;
    put_dead(fx, message("dead").deliver_in(DAY)).await;
    let held = put(fx, message("held")).await;
    fx.admin().await.quarantine(held, "op", "hold").await.unwrap();
    let before = fx.dump().await;
    fx.advance(DAY * 6).await;
    let store = fx.store().await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    assert_eq!(posthouse_core::repair(&*store, 100).await.unwrap(), 0);
    assert_unchanged(fx, &before, "the relay").await;
}

/// Held with a note, out of every claim, until it is sent round again.
pub async fn a_quarantined_message_waits_for_its_operator(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let admin = fx.admin().await;
    admin.quarantine(id, "op", "looks odd").await.unwrap();
    let found = view(fx, id).await;
    assert_eq!(
        (found.state, found.note.as_deref()),
        (State::Quarantined, Some("looks odd"))
    );
    assert_eq!(found.finished_at, Some(fx.now().await));
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
    admin.replay(id, "op", "it is fine", None).await.unwrap();
    assert_eq!(claim_one(&*fx.store().await, "w1").await.lease.id, id);
    assert_eq!(
        view(fx, id).await.note,
        None,
        "it is no longer held; the audit remembers"
    );
}

/// Done by declaration: no attempt is invented for it.
pub async fn a_resolved_message_is_done_without_an_attempt(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    fx.advance(SECOND).await;
    fx.admin()
        .await
        .resolve(id, "op", "seen in their log", "")
        .await
        .unwrap();
    let found = view(fx, id).await;
    assert_eq!((found.state, found.finished_at), (State::Done, Some(fx.now().await)));
    assert!(fx.admin().await.attempts(id).await.unwrap().is_empty());
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
}

/// Dead, with the reason that a person gave it up.
pub async fn a_cancelled_message_is_dead(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    fx.admin().await.cancel(id, "op", "not wanted").await.unwrap();
    let found = view(fx, id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Cancelled)));
    assert_eq!(found.finished_at, Some(fx.now().await));
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
}

/// P2. It leaves with its evidence, by a purge that the audit remembers.
pub async fn a_discarded_message_is_gone_but_audited(fx: &dyn Fixture) {
    let id = put_dead(fx, message("42")).await;
    let admin = fx.admin().await;
    admin.discard(id, "op", "personal data").await.unwrap();
    assert_eq!(admin.find(id).await.unwrap(), None);
    assert!(admin.attempts(id).await.unwrap().is_empty());
    assert_eq!(count(fx).await, 0);
    let audit = admin.audit(&AuditFilter::of(id)).await.unwrap();
    assert_eq!((audit.len(), audit[0].action.as_str()), (1, "discard"));
    let again = admin.discard(id, "op", "personal data").await;
    assert!(matches!(again, Err(Error::NotFound(_))), "{again:?}");
}

/// P2. Retention takes what ended long ago, never what is alive or held.
pub async fn prune_removes_only_what_ended_long_ago(fx: &dyn Fixture) {
    let old: BTreeSet<_> = [put_done(fx, message("a")).await, put_dead(fx, message("b")).await].into();
    let admin = fx.admin().await;
    let cancelled = put(fx, message("c")).await;
    admin.cancel(cancelled, "op", "why").await.unwrap();
    let held = put(fx, message("held")).await;
    admin.quarantine(held, "op", "hold").await.unwrap();
    let pending = put(fx, message("pending").delay(DAY * 90)).await;
    fx.advance(DAY * 10).await;
    let young = put_done(fx, message("young")).await;
    let leased = put_and_claim(fx, message("leased")).await.id;
    fx.advance(SECOND).await;
    let pruned = admin.prune(&ended(DAY * 9, 100)).await.unwrap();
    assert_eq!(pruned.messages(), 3);
    for gone in old.into_iter().chain([cancelled]) {
        assert_eq!(admin.find(gone).await.unwrap(), None);
        assert!(admin.attempts(gone).await.unwrap().is_empty());
    }
    for stays in [held, pending, young, leased] {
        assert!(admin.find(stays).await.unwrap().is_some());
    }
    assert_eq!(admin.attempts(young).await.unwrap().len(), 1);
    assert_eq!(
        admin.audit(&AuditFilter::of(cancelled)).await.unwrap().len(),
        1,
        "the audit stays"
    );
}

/// Retention works in pieces.
pub async fn prune_removes_at_most_its_limit(fx: &dyn Fixture) {
    for n in 0..5 {
        put_done(fx, message(&n.to_string()).dedupe_key(n.to_string())).await;
    }
    fx.advance(DAY * 30).await;
    let mut removed = Vec::new();
    for _ in 0..4 {
        let pruned = fx.admin().await.prune(&ended(DAY, 2)).await.unwrap();
        removed.push((pruned.messages(), pruned.dedupe_keys));
    }
    assert_eq!(removed, [(2, 2), (2, 2), (1, 1), (0, 0)]);
}

/// It says whether to call it again; what is alive in between does not end it early, and it does end.
pub async fn prune_until_it_is_done_leaves_nothing_behind(fx: &dyn Fixture) {
    let mut alive = BTreeSet::new();
    for n in 0..30 {
        if n % 3 == 0 {
            put_done(fx, message(&n.to_string())).await;
        } else {
            alive.insert(put(fx, message(&n.to_string()).delay(DAY * 90)).await);
        }
    }
    fx.advance(DAY * 30).await;
    let admin = fx.admin().await;
    for round in 0..2 {
        let (mut removed, mut calls) = (0, 0);
        loop {
            let pruned = admin.prune(&ended(DAY, 2)).await.unwrap();
            assert!(pruned.messages() <= 2);
            removed += pruned.messages();
            calls += 1;
            assert!(calls < 50, "round {round}: it does not end");
            if !pruned.more {
                break;
            }
        }
        assert_eq!(removed, if round == 0 { 10 } else { 0 }, "round {round}");
    }
    let left: BTreeSet<_> = admin
        .list(&Filter::default())
        .await
        .unwrap()
        .messages
        .iter()
        .map(|m| m.id)
        .collect();
    assert_eq!(left, alive);
}

/// An age that reaches back before any time is one that nothing has.
pub async fn prune_with_any_age_is_answered(fx: &dyn Fixture) {
    put_done(fx, message("42")).await;
    let admin = fx.admin().await;
    assert_eq!(admin.prune(&ended(Duration::MAX, 100)).await.unwrap().messages(), 0);
    assert_eq!(
        admin.prune(&ended(Duration::ZERO, u32::MAX)).await.unwrap().messages(),
        1
    );
}

/// A caller that goes on until there is no more would go on for ever.
pub async fn prune_of_at_most_nothing_is_refused(fx: &dyn Fixture) {
    let refused = fx.admin().await.prune(&ended(Duration::ZERO, 0)).await.unwrap_err();
    let Error::Invalid(invalid) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(invalid.field, "max_rows");
}

/// It holds its key until a person has dealt with it; gone, nobody would know why the key stands or why it moved.
pub async fn a_dead_message_that_blocks_its_key_is_not_pruned(fx: &dyn Fixture) {
    let blocking = put_dead(fx, keyed("k", "1").on_dead(OnDead::Block)).await;
    let passing = put_dead(fx, keyed("p", "1")).await;
    let next = put(fx, keyed("k", "2")).await;
    fx.advance(DAY * 30).await;
    let admin = fx.admin().await;
    assert_eq!(admin.prune(&ended(DAY, 100)).await.unwrap().messages(), 1);
    assert_eq!(admin.find(passing).await.unwrap(), None);
    assert_eq!(state(fx, blocking).await, State::Dead);
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
    admin.resolve(blocking, "op", "done by hand", "").await.unwrap();
    assert_eq!(claim_one(&*fx.store().await, "w1").await.lease.id, next);
}

/// Each field of the filter, alone and together.
pub async fn a_list_shows_what_its_filter_says(fx: &dyn Fixture) {
    let plain = put(fx, message("1")).await;
    let acme = put(fx, message("2").tenant("acme")).await;
    let billing = put(fx, message("3").namespace("billing").tenant("acme")).await;
    let topic = put(fx, posthouse_core::Message::bytes("invoices", "text/plain", "4")).await;
    let keyed = put(fx, keyed("k", "5")).await;
    fx.admin().await.quarantine(keyed, "op", "hold").await.unwrap();
    let any = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    let filters = [
        (any(), vec![keyed, topic, billing, acme, plain]),
        (
            Filter {
                namespace: text("billing"),
                ..any()
            },
            vec![billing],
        ),
        (
            Filter {
                tenant: text("acme"),
                ..any()
            },
            vec![billing, acme],
        ),
        (
            Filter {
                tenant: text(""),
                ..any()
            },
            vec![keyed, topic, plain],
        ),
        (
            Filter {
                tenant: text("acme"),
                namespace: text("default"),
                ..any()
            },
            vec![acme],
        ),
        (
            Filter {
                topic: text("invoices"),
                ..any()
            },
            vec![topic],
        ),
        (
            Filter {
                order_key: text("k"),
                ..any()
            },
            vec![keyed],
        ),
        (
            Filter {
                state: Some(State::Quarantined),
                ..any()
            },
            vec![keyed],
        ),
        (
            Filter {
                state: Some(State::Done),
                ..any()
            },
            vec![],
        ),
        (
            Filter {
                tenant: text("nobody"),
                ..any()
            },
            vec![],
        ),
    ];
    for (filter, expected) in filters {
        let page = fx.admin().await.list(&filter).await.unwrap();
        assert_eq!(
            page.messages.iter().map(|m| m.id).collect::<Vec<_>>(),
            expected,
            "{filter:?}"
        );
        assert_eq!(page.next, None);
    }
}

/// Newest first, no gap and no repetition, though messages come in meanwhile.
pub async fn a_list_is_paged_without_gaps(fx: &dyn Fixture) {
    let mut expected = put_all(fx, (0..7).map(|n| message(&n.to_string())).collect()).await;
    expected.reverse();
    let (mut found, mut sizes, mut beyond) = (Vec::new(), Vec::new(), None);
    loop {
        let filter = Filter {
            beyond,
            limit: 3,
            ..Filter::default()
        };
        let page = fx.admin().await.list(&filter).await.unwrap();
        sizes.push(page.messages.len());
        found.extend(page.messages.iter().map(|m| m.id));
        put(fx, message("new")).await;
        beyond = page.next;
        if beyond.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!(found, expected);
}

/// A page without a limit is a page all the same.
pub async fn a_list_has_a_limit_of_its_own(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 51]).await;
    let page = fx.admin().await.list(&Filter::default()).await.unwrap();
    assert_eq!(page.messages.len(), 50);
    assert_eq!(page.next, page.messages.last().map(|m| m.seq));
}

/// A view tells all but the payload, and a list tells the same as a find.
pub async fn a_view_tells_the_message_whole(fx: &dyn Fixture) {
    let now = fx.now().await;
    let written = message("hello")
        .tenant("acme")
        .namespace("billing")
        .order_key("k")
        .dedupe_key("d");
    let id = put(fx, written.clone().deliver_in(DAY).max_attempts(5)).await;
    let found = view(fx, id).await;
    assert_eq!(
        (found.tenant.as_str(), found.namespace.as_str(), found.topic.as_str()),
        ("acme", "billing", "orders")
    );
    assert_eq!(
        (found.order_key.as_deref(), found.dedupe_key.as_deref()),
        (Some("k"), Some("d"))
    );
    assert_eq!(
        (found.state, found.reason, found.attempts, found.epoch),
        (State::Pending, None, 0, 0)
    );
    assert_eq!((found.generation, found.max_attempts), (1, 5));
    assert_eq!(
        (found.created_at, found.due_at, found.deliver_by),
        (now, Some(now), Some(now.plus(DAY)))
    );
    assert_eq!(
        (found.finished_at, found.last_code.as_ref(), found.last_error.as_ref()),
        (None, None, None)
    );
    assert_eq!((found.content_type.as_str(), found.bytes), ("text/plain", 5));
    assert_eq!(found.digest, Some(written.digest()));
    let listed = fx.admin().await.list(&Filter::default()).await.unwrap().messages;
    assert_eq!(listed, [found]);
}
