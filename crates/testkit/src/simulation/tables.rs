//! The end of a simulated world: what is in the tables must be what the history says.

use posthouse_core::{Admin, Attempt, AttemptOutcome, AuditFilter, Error, Filter, MessageId, MessageView, State};
use std::collections::{BTreeMap, BTreeSet};

use super::{
    History,
    judge::{Broken, Court, Track},
};
use crate::suite::invariants::assert_all_sound;

/// Which promises the history and the tables break. Everything has come to rest, and had the time to end; in a `calm` world nothing
/// ever went wrong.
pub async fn judge(history: &History, admin: &dyn Admin, calm: bool) -> Result<Vec<Broken>, Error> {
    let mut court = Court::hear(&history.facts(), calm);
    let views = all(admin).await?;
    court.all_are_there(&views);
    court.keys_are_taken_once();
    let now = history.now();
    for view in views.values() {
        let attempts = admin.attempts(view.id).await?;
        let Some(track) = court.messages.get(&view.id) else {
            continue;
        };
        let mut wrong = against(track, view, &attempts, track.has_lapsed(now));
        if calm {
            wrong.extend(in_a_calm(track, &attempts));
        }
        wrong
            .into_iter()
            .for_each(|(promise, what)| court.accuse(promise, what));
    }
    if calm {
        let conflicts = AuditFilter {
            action: Some("outbox_flush_conflict".into()),
            ..AuditFilter::default()
        };
        let conflicts = admin.audit(&conflicts).await?.len();
        if conflicts > 0 {
            court.accuse("P21", format!("{conflicts} conflicts although nothing went wrong"));
        }
    }
    if court.broken.is_empty() {
        assert_all_sound(admin, &views.into_keys().collect::<Vec<_>>()).await;
    }
    Ok(court.broken)
}

async fn all(admin: &dyn Admin) -> Result<BTreeMap<MessageId, MessageView>, Error> {
    let (mut found, mut beyond) = (BTreeMap::new(), None);
    loop {
        let page = admin
            .list(&Filter {
                limit: 1000,
                oldest_first: true,
                beyond,
                ..Filter::default()
            })
            .await?;
        found.extend(page.messages.into_iter().map(|view| (view.id, view)));
        beyond = page.next;
        if beyond.is_none() {
            return Ok(found);
        }
    }
}

impl Court {
    fn all_are_there(&mut self, views: &BTreeMap<MessageId, MessageView>) {
        let expected: BTreeSet<_> = self
            .messages
            .iter()
            .filter(|(_, t)| !t.discarded)
            .map(|(id, _)| *id)
            .collect();
        let found: BTreeSet<_> = views.keys().copied().collect();
        for lost in expected.difference(&found) {
            self.accuse("P2", format!("{} is lost", self.name(*lost)));
        }
        for phantom in found.difference(&expected) {
            self.accuse("P1", format!("{phantom} is there, although nobody committed it"));
        }
    }

    fn keys_are_taken_once(&mut self) {
        let mut keys = BTreeMap::<_, Vec<_>>::new();
        for track in self.messages.values().filter(|track| !track.discarded) {
            let m = &track.message;
            if let Some(key) = m.dedupe_key.clone() {
                let taken = keys.entry((m.namespace.clone(), m.tenant.clone(), m.topic.clone(), key));
                taken.or_default().push(track.name.clone());
            }
        }
        for (key, names) in keys.into_iter().filter(|(_, names)| names.len() > 1) {
            self.accuse("P12", format!("{} is the key of {names:?}", key.3));
        }
    }
}

fn against(track: &Track, view: &MessageView, attempts: &[Attempt], lapsed: bool) -> Vec<(&'static str, String)> {
    let (name, mut wrong) = (&track.name, Vec::new());
    if !view.state.is_terminal() {
        wrong.push(("L5", format!("{name} has not ended: it is {}", view.state)));
    }
    if view.state != track.state && !(lapsed && view.state == State::Dead) {
        wrong.push(("P2", format!("{name} is {}, and should be {}", view.state, track.state)));
    }
    let rows: Vec<_> = attempts.iter().map(|row| (row.epoch, row.token, row.outcome)).collect();
    let told = track
        .ends
        .iter()
        .filter_map(|(epoch, token, outcome)| Some((*epoch, *token, (*outcome)?)));
    if rows != told.collect::<Vec<_>>() {
        wrong.push((
            "P6",
            format!("the evidence of {name} is not what was settled: {rows:?}"),
        ));
    }
    wrong
}

fn in_a_calm(track: &Track, attempts: &[Attempt]) -> Option<(&'static str, String)> {
    let received = track.sends.iter().filter(|send| send.received).count();
    let expired = attempts
        .iter()
        .filter(|row| row.outcome == AttemptOutcome::LeaseExpired)
        .count();
    (received > 1 || expired > 0).then(|| {
        let what = format!(
            "{} was received {received} times and expired {expired} times in a calm",
            track.name
        );
        ("P21", what)
    })
}
