//! The audit of what operators did.

use posthouse_core::{AuditEntry, AuditFilter, Message};

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
        .map(|line| (line.actor.as_str(), line.action.as_str(), line.detail.as_str()))
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
    for (filter, details) in expect {
        let lines = audited(fx, filter.clone()).await;
        let found: Vec<_> = told(&lines).iter().map(|line| line.2).collect();
        assert_eq!(found, details, "{filter:?}");
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
            found.extend(lines.iter().map(|line| line.detail.clone()));
            admin.resume("nothing", "bob", "meanwhile").await.unwrap();
        }
        found.retain(|detail| detail != "meanwhile");
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
