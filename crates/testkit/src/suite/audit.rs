//! The audit of what operators did.

use posthouse_core::{
    AuditEntry, AuditFilter, Error, Message, MessageId, OnDead, Prune, PruneRecord, PruneStates, State,
};

use super::tools::*;
use crate::Fixture;

async fn audited(fx: &dyn Fixture, filter: AuditFilter) -> Vec<AuditEntry> {
    fx.admin().await.audit(&filter).await.unwrap()
}

fn told(lines: &[AuditEntry]) -> Vec<(&str, &str, &str)> {
    let line = |line: &AuditEntry| {
        let about = line.destination.is_some() as u8 + line.id.is_some() as u8;
        assert_eq!(about, 1, "a line is about a message or a destination: {line:?}");
    };
    lines.iter().for_each(line);
    lines
        .iter()
        .map(|line| (line.actor.as_str(), line.action.as_str(), line.note.as_str()))
        .collect()
}

/// By whom, what, and of which message; together and alone.
pub async fn the_audit_by_actor_and_action(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let (one, two) = (put(fx, message("1")).await, put(fx, message("2")).await);
    admin.quarantine(one, "ada", "1").await.unwrap();
    admin.quarantine(two, "bob", "2").await.unwrap();
    admin.replay(one, "bob", "3", None).await.unwrap();
    admin.replay(two, "ada", "4", None).await.unwrap();
    admin.pause("shop", "ada", "5").await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    let filter = |id, actor: &str, action: &str| AuditFilter {
        id,
        actor: text(actor).filter(|t| !t.is_empty()),
        action: text(action).filter(|t| !t.is_empty()),
        ..AuditFilter::default()
    };
    let expect = [
        (filter(None, "", ""), vec!["5", "4", "3", "2", "1"]),
        (filter(None, "ada", ""), vec!["5", "4", "1"]),
        (filter(None, "", "replay"), vec!["4", "3"]),
        (filter(None, "bob", "replay"), vec!["3"]),
        (filter(Some(two), "", ""), vec!["4", "2"]),
        (filter(Some(two), "ada", ""), vec!["4"]),
        (filter(Some(two), "", "quarantine"), vec!["2"]),
        (filter(Some(one), "ada", "replay"), vec![]),
        (filter(None, "ad", ""), vec![]),
        (filter(None, "", "pause"), vec!["5"]),
    ];
    for (filter, notes) in expect {
        let lines = audited(fx, filter.clone()).await;
        let found: Vec<_> = told(&lines).iter().map(|line| line.2).collect();
        assert_eq!(found, notes, "{filter:?}");
    }
}

/// Newest first, numbered, page by page without a gap, though lines are written meanwhile.
pub async fn the_audit_is_paged_without_gaps(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let id = put(fx, message("x")).await;
    for n in 0..7 {
        admin.pause(&format!("d{n}"), "ada", &n.to_string()).await.unwrap();
    }
    admin.quarantine(id, "ada", "7").await.unwrap();
    for (filter, expected) in [
        (AuditFilter::default(), vec!["7", "6", "5", "4", "3", "2", "1", "0"]),
        (
            AuditFilter {
                actor: Some("ada".into()),
                action: Some("pause".into()),
                ..AuditFilter::default()
            },
            vec!["6", "5", "4", "3", "2", "1", "0"],
        ),
    ] {
        let (mut found, mut before): (Vec<String>, Option<i64>) = (Vec::new(), None);
        let newest = audited(fx, AuditFilter::default()).await[0].n;
        let mut last = newest + 1;
        loop {
            let page = AuditFilter {
                before: before.or(Some(last)),
                limit: 3,
                ..filter.clone()
            };
            let lines = audited(fx, page).await;
            let Some(end) = lines.last() else { break };
            assert!(lines.len() <= 3);
            before = Some(end.n);
            for line in &lines {
                assert!(line.n < last, "numbers fall from line to line");
                last = line.n;
            }
            found.extend(lines.iter().map(|line| line.note.clone()));
            admin.resume("nothing", "bob", "meanwhile").await.unwrap();
        }
        found.retain(|note| note != "meanwhile");
        assert_eq!(found, expected);
    }
}

/// A page without a limit is a page all the same.
pub async fn the_audit_has_a_limit_of_its_own(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    for _ in 0..51 {
        admin.pause("shop", "ada", "").await.unwrap();
    }
    assert_eq!(audited(fx, AuditFilter::default()).await.len(), 50);
}

/// Lines about a destination name it, and no message.
pub async fn the_audit_of_destinations(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let id = put(fx, Message::bytes("orders", "text/plain", "x")).await;
    let start = fx.now().await;
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    fx.advance(SECOND).await;
    admin.resume("shop", "bob", "done").await.unwrap();
    admin.quarantine(id, "ada", "hold").await.unwrap();
    let lines = audited(fx, AuditFilter::default()).await;
    assert_eq!(
        told(&lines),
        [
            ("ada", "quarantine", "hold"),
            ("bob", "resume", "done"),
            ("ada", "pause", "maintenance")
        ]
    );
    let about: Vec<_> = lines.iter().map(|l| (l.id, l.destination.as_deref(), l.at)).collect();
    let later = start.plus(SECOND);
    assert_eq!(
        about,
        [
            (Some(id), None, later),
            (None, Some("shop"), later),
            (None, Some("shop"), start)
        ]
    );
    assert_eq!(audited(fx, AuditFilter::of(id)).await, lines[..1]);
}

/// The audit rows of prunes, newest first.
async fn prunes(fx: &dyn Fixture) -> Vec<AuditEntry> {
    let filter = AuditFilter {
        action: Some("prune".into()),
        ..AuditFilter::default()
    };
    audited(fx, filter).await
}

/// Two messages that are done and three that are dead, two days old: one refused, one cancelled, one that holds its order key.
async fn two_done_three_dead(fx: &dyn Fixture) -> (Vec<MessageId>, Vec<MessageId>) {
    let done = vec![
        put_done(fx, message("1").dedupe_key("1")).await,
        put_done(fx, message("2")).await,
    ];
    let refused = put_dead(fx, message("3")).await;
    let cancelled = put(fx, message("4")).await;
    fx.admin().await.cancel(cancelled, "ada", "withdrawn").await.unwrap();
    let blocks = put_dead(fx, keyed("k", "5").on_dead(OnDead::Block)).await;
    fx.advance(DAY * 2).await;
    (done, vec![refused, cancelled, blocks])
}

/// A dead letter waits for an operator's decision: no prune takes it unless it is asked for by name.
pub async fn prune_leaves_dead_letters_unless_asked(fx: &dyn Fixture) {
    let (done, dead) = two_done_three_dead(fx).await;
    let admin = fx.admin().await;
    let pruned = admin.prune(&Prune::done(DAY, 100, "ada")).await.unwrap();
    assert_eq!((pruned.done, pruned.dead, pruned.more), (2, 0, false));
    for id in done {
        assert_eq!(admin.find(id).await.unwrap(), None);
    }
    for id in &dead {
        assert_eq!(state(fx, *id).await, State::Dead);
        assert!(admin.find(*id).await.unwrap().is_some());
    }
    assert_eq!(admin.attempts(dead[0]).await.unwrap().len(), 1, "its evidence stays");
}

/// A prune of dead letters leaves done messages, dedupe keys, and the dead letter that blocks its order key.
pub async fn prune_of_dead_letters_removes_nothing_else(fx: &dyn Fixture) {
    let (done, dead) = two_done_three_dead(fx).await;
    fx.advance(DAY * 30).await;
    let admin = fx.admin().await;
    let pruned = admin
        .prune(&Prune::done(DAY, 100, "ada").states(PruneStates::Dead))
        .await
        .unwrap();
    assert_eq!((pruned.done, pruned.dead, pruned.dedupe_keys), (0, 2, 0));
    for (id, stays) in [
        (done[0], true),
        (done[1], true),
        (dead[0], false),
        (dead[1], false),
        (dead[2], true),
    ] {
        assert_eq!(admin.find(id).await.unwrap().is_some(), stays);
    }
}

/// It works in pieces as well, and ends.
pub async fn prune_of_dead_letters_goes_on_until_there_is_no_more(fx: &dyn Fixture) {
    for n in 0..5 {
        put_dead(fx, message(&n.to_string())).await;
        put_done(fx, message(&n.to_string())).await;
    }
    fx.advance(DAY * 2).await;
    let (admin, mut removed) = (fx.admin().await, Vec::new());
    loop {
        let pruned = admin
            .prune(&Prune::done(DAY, 2, "ada").states(PruneStates::Dead))
            .await
            .unwrap();
        removed.push(pruned.dead);
        assert!(removed.len() < 10, "it does not end: {removed:?}");
        if !pruned.more {
            break;
        }
    }
    assert_eq!(removed.iter().sum::<u64>(), 5);
    assert_eq!(count(fx).await, 5);
}

/// It says what the same prune removes then, of each state, and changes nothing: no message, no audit.
pub async fn dry_run_of_a_prune_counts_and_changes_nothing(fx: &dyn Fixture) {
    let (_, dead) = two_done_three_dead(fx).await;
    fx.advance(DAY * 30).await;
    let (admin, before) = (fx.admin().await, fx.dump().await);
    for states in [PruneStates::All, PruneStates::Dead, PruneStates::Done] {
        let prune = Prune::done(DAY, 100, "ada").states(states);
        let told = admin.prune(&prune.clone().dry_run()).await.unwrap();
        let expected = (u64::from(states.done()) * 2, u64::from(states.dead()) * 2);
        assert_eq!(
            (told.done, told.dead, told.more, told.audit),
            (expected.0, expected.1, false, None),
            "{states}"
        );
        assert_unchanged(fx, &before, "a dry run").await;
        assert!(prunes(fx).await.is_empty());
    }
    let one = Prune::done(DAY, 1, "ada").states(PruneStates::All).dry_run();
    let told = admin.prune(&one).await.unwrap();
    assert_eq!(
        (told.done, told.dead, told.more),
        (1, 1, true),
        "there are more than it counted"
    );
    assert_unchanged(fx, &before, "a dry run with a limit").await;
    let told = admin.prune(&ended(DAY, 100).dry_run()).await.unwrap();
    let done = admin.prune(&ended(DAY, 100)).await.unwrap();
    assert_eq!(
        (told.done, told.dead, told.dedupe_keys),
        (done.done, done.dead, done.dedupe_keys)
    );
    assert_eq!((done.done, done.dead, done.dedupe_keys), (2, 2, 1));
    assert_eq!(state(fx, dead[2]).await, State::Dead, "it blocks its order key");
}

/// Who, why, which states, how old, and how many of each: one row for a run of several calls, that is right after each of them.
pub async fn prune_writes_one_audit_row_with_its_counts(fx: &dyn Fixture) {
    two_done_three_dead(fx).await;
    let admin = fx.admin().await;
    let now = fx.now().await;
    let mut prune = ended(DAY, 1).note("the yearly cleaning");
    prune.actor = "ada".into();
    for n in 1..=2 {
        let pruned = admin.prune(&prune).await.unwrap();
        assert_eq!((pruned.done, pruned.dead), (1, 1));
        let rows = prunes(fx).await;
        assert_eq!(rows.len(), 1, "call {n}");
        let row = &rows[0];
        assert_eq!((row.actor.as_str(), row.note.as_str()), ("ada", "the yearly cleaning"));
        assert_eq!(
            (row.id, row.destination.as_deref(), Some(row.n)),
            (None, None, pruned.audit)
        );
        let expected = PruneRecord {
            states: PruneStates::All,
            cutoff: now.minus(DAY),
            done: n,
            dead: n,
            dedupe_keys: 0,
            entries: 0,
            inbox: 0,
            sagas: 0,
        };
        assert_eq!(row.pruned, Some(expected), "call {n}");
        prune.audit = pruned.audit;
    }
    // Another actor, or another run, writes another row.
    put_done(fx, message("x")).await;
    put_done(fx, message("y")).await;
    fx.advance(DAY * 2).await;
    let other = Prune {
        actor: "bob".into(),
        ..prune.clone()
    };
    admin.prune(&other).await.unwrap();
    admin.prune(&Prune { audit: None, ..prune }).await.unwrap();
    let actors: Vec<_> = prunes(fx).await.into_iter().map(|row| row.actor).collect();
    assert_eq!(actors, ["ada", "bob", "ada"]);
}

/// A relay prunes every minute.
pub async fn prune_that_removes_nothing_writes_no_audit(fx: &dyn Fixture) {
    put_dead(fx, message("dead")).await;
    fx.advance(DAY * 2).await;
    put_done(fx, message("young")).await;
    let pruned = fx.admin().await.prune(&Prune::done(DAY, 100, "ada")).await.unwrap();
    assert_eq!((pruned.messages(), pruned.audit), (0, None));
    assert!(prunes(fx).await.is_empty());
}

/// As every verb of an operator.
pub async fn prune_without_an_actor_is_refused(fx: &dyn Fixture) {
    put_done(fx, message("old")).await;
    fx.advance(DAY * 2).await;
    for prune in [Prune::done(DAY, 100, ""), Prune::done(DAY, 100, "").dry_run()] {
        match fx.admin().await.prune(&prune).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "actor"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(count(fx).await, 1);
}

/// The audit keeps the receipt behind the operator's note.
pub async fn resolve_keeps_note_and_receipt(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    for (note, receipt, kept) in [
        ("asked them", "B-77", "asked them; receipt: B-77"),
        ("asked them", "", "asked them"),
        ("", "B-77", "receipt: B-77"),
    ] {
        let id = put(fx, message("x")).await;
        admin.resolve(id, "ada", note, receipt).await.unwrap();
        assert_eq!(audited(fx, AuditFilter::of(id)).await[0].note, kept);
    }
}
