//! An entry as operators see it.

use serde::Serialize;

use super::{Entry, EntryKey, Fingerprint, Status};
use crate::{Digest, MessageId, Timestamp};

/// An entry as operators see it. Neither its holder's token nor the body of its answer is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryView {
    /// Whose it is.
    pub tenant: String,
    /// What the key is for.
    pub scope: String,
    /// The key.
    pub key: String,
    /// Where it stands.
    pub status: Status,
    /// Until when it is held; or was, by somebody who was not heard of again.
    pub lease_until: Option<Timestamp>,
    /// The message that holds it, or that ended it.
    pub message: Option<MessageId>,
    /// The last point that a holder came to.
    pub checkpoint: Option<String>,
    /// The status of the answer.
    pub http_status: Option<u16>,
    /// How large the body of the answer is, if it was kept.
    pub result_bytes: Option<u64>,
    /// The digest of the body.
    #[serde(serialize_with = "crate::admin::digest_text")]
    pub result_digest: Option<Digest>,
    /// What was said about a failure, or when it was let go of.
    pub error: Option<String>,
    /// What it is for.
    pub fingerprint: Fingerprint,
    /// When it was first begun.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// From when on it is as if it were not there.
    pub expires_at: Option<Timestamp>,
}

/// What an entry in flight waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// Its holder, who has time until then.
    Holder(Timestamp),
    /// Somebody who goes on: its holder was not heard of again.
    Heir,
    /// A message.
    Message(MessageId),
    /// Somebody who begins again: it was let go of.
    Anybody,
}

/// Which entries to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this scope.
    pub scope: Option<String>,
    /// Only those that stand so.
    pub status: Option<Status>,
    /// Only those after this one, by tenant, scope and key: the `next` of the page before.
    pub after: Option<EntryKey>,
    /// At most this many; 50 when zero, 1,000 at most.
    pub limit: u32,
}

/// A page of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPage {
    /// The entries, by tenant, scope and key.
    pub entries: Vec<EntryView>,
    /// Where the next page begins, when there may be one.
    pub next: Option<EntryKey>,
}

impl EntryView {
    /// The entry under this key.
    pub fn of(key: &EntryKey, entry: &Entry) -> Self {
        let kept = entry.kept.as_ref();
        Self {
            tenant: key.tenant.clone(),
            scope: key.scope.clone(),
            key: key.key.clone(),
            status: entry.status,
            lease_until: entry.lease_until,
            message: entry.message,
            checkpoint: entry.checkpoint.clone(),
            http_status: kept.and_then(|kept| kept.status),
            result_bytes: kept.and_then(|kept| Some(kept.body.as_ref()?.len() as u64)),
            result_digest: kept.and_then(|kept| kept.digest),
            error: kept.and_then(|kept| kept.error.clone()),
            fingerprint: entry.fingerprint,
            created_at: entry.created_at,
            updated_at: entry.updated_at,
            expires_at: entry.expires_at,
        }
    }

    /// Its key.
    pub fn entry_key(&self) -> EntryKey {
        EntryKey::new(&self.scope, &self.key).tenant(&self.tenant)
    }

    /// What it waits for at this time, while it is in flight.
    pub fn waits(&self, now: Timestamp) -> Option<Waits> {
        match (self.status, self.lease_until, self.message) {
            (Status::Succeeded | Status::Failed, ..) => None,
            (Status::InFlight, Some(until), _) if until > now => Some(Waits::Holder(until)),
            (Status::InFlight, Some(_), _) => Some(Waits::Heir),
            (Status::InFlight, None, Some(id)) => Some(Waits::Message(id)),
            (Status::InFlight, None, None) => Some(Waits::Anybody),
        }
    }
}

impl EntryFilter {
    /// How many entries a page holds. Read one more, to know whether there is another page.
    pub fn page_size(&self) -> u32 {
        if self.limit == 0 { 50 } else { self.limit.min(1000) }
    }

    /// The key after which to look.
    pub fn start(&self) -> EntryKey {
        let first =
            EntryKey::new(self.scope.clone().unwrap_or_default(), "").tenant(self.tenant.clone().unwrap_or_default());
        // Without a tenant its scope may be anywhere.
        let first = if self.tenant.is_some() {
            first
        } else {
            EntryKey::new("", "")
        };
        self.after.clone().unwrap_or(first.clone()).max(first)
    }

    /// Whether it is listed.
    pub fn takes(&self, entry: &EntryView) -> bool {
        let is = |wanted: &Option<String>, found: &String| wanted.as_ref().is_none_or(|wanted| wanted == found);
        is(&self.tenant, &entry.tenant)
            && is(&self.scope, &entry.scope)
            && self.status.is_none_or(|status| status == entry.status)
    }
}

impl EntryPage {
    /// Makes a page from entries in order, from after [`EntryFilter::start`] on. It stops when it is full, or has looked at so many, and then there may be more.
    pub fn of<E>(
        looked: impl IntoIterator<Item = Result<EntryView, E>>,
        filter: &EntryFilter,
        most: u32,
    ) -> Result<Self, E> {
        let mut entries = Vec::new();
        for (entry, count) in looked.into_iter().zip(1..) {
            let entry = entry?;
            if filter.tenant.as_ref().is_some_and(|tenant| entry.tenant > *tenant) {
                break;
            }
            let key = entry.entry_key();
            if filter.takes(&entry) {
                entries.push(entry);
            }
            if entries.len() == filter.page_size() as usize || count == most {
                return Ok(Self {
                    entries,
                    next: Some(key),
                });
            }
        }
        Ok(Self { entries, next: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Begin;

    fn view(tenant: &str, scope: &str, key: &str) -> EntryView {
        let key = EntryKey::new(scope, key).tenant(tenant);
        let ask = Begin::new(key.clone(), Fingerprint::of_bytes(b"a"));
        let token = crate::LeaseToken(uuid::Uuid::nil());
        let entry = Entry::begin(None, &ask, token, Timestamp::from_micros(0)).0.unwrap();
        EntryView::of(&key, &entry)
    }

    fn keys(page: &EntryPage) -> Vec<&str> {
        page.entries.iter().map(|entry| entry.key.as_str()).collect()
    }

    fn page(all: &[EntryView], filter: &EntryFilter, most: u32) -> EntryPage {
        let start = filter.start();
        let rest = all.iter().filter(|entry| entry.entry_key() > start);
        EntryPage::of(rest.map(|entry| Ok::<_, ()>(entry.clone())), filter, most).unwrap()
    }

    #[test]
    fn pages_follow_each_other() {
        let all: Vec<_> = ["a", "b", "c"].iter().map(|key| view("", "s", key)).collect();
        let mut filter = EntryFilter {
            limit: 2,
            ..EntryFilter::default()
        };
        let first = page(&all, &filter, 100);
        assert_eq!(
            (keys(&first), first.next.clone()),
            (vec!["a", "b"], Some(EntryKey::new("s", "b")))
        );
        filter.after = first.next;
        let second = page(&all, &filter, 100);
        assert_eq!((keys(&second), second.next.clone()), (vec!["c"], None));
    }

    #[test]
    fn a_look_that_was_cut_short_goes_on_where_it_was() {
        let filter = EntryFilter {
            status: Some(Status::Failed),
            ..EntryFilter::default()
        };
        let all = [view("t", "s", "a"), view("t", "s", "b")];
        let cut = page(&all, &filter, 1);
        assert_eq!(
            (keys(&cut), cut.next.clone()),
            (vec![], Some(EntryKey::new("s", "a").tenant("t")))
        );
    }

    #[test]
    fn it_ends_with_its_tenant() {
        let filter = EntryFilter {
            tenant: Some("t".into()),
            limit: 2,
            ..EntryFilter::default()
        };
        let all = [view("s", "s", "a"), view("t", "s", "b"), view("u", "s", "c")];
        let own = page(&all, &filter, 100);
        assert_eq!((keys(&own), own.next.clone()), (vec!["b"], None));
    }

    #[test]
    fn it_looks_from_the_tenant_on() {
        let filter = |tenant: Option<&str>, scope: Option<&str>, after| EntryFilter {
            tenant: tenant.map(str::to_owned),
            scope: scope.map(str::to_owned),
            after,
            ..EntryFilter::default()
        };
        assert_eq!(filter(None, Some("s"), None).start(), EntryKey::new("", ""));
        assert_eq!(
            filter(Some("t"), Some("s"), None).start(),
            EntryKey::new("s", "").tenant("t")
        );
        let beyond = EntryKey::new("s", "k").tenant("t");
        assert_eq!(filter(Some("t"), None, Some(beyond.clone())).start(), beyond);
        let before = EntryKey::new("s", "k");
        assert_eq!(
            filter(Some("t"), None, Some(before)).start(),
            EntryKey::new("", "").tenant("t")
        );
    }

    #[test]
    fn it_says_what_is_waited_for() {
        let mut entry = view("", "s", "a");
        let (now, until) = (Timestamp::from_micros(0), entry.lease_until.unwrap());
        assert_eq!(entry.waits(now), Some(Waits::Holder(until)));
        assert_eq!(entry.waits(until), Some(Waits::Heir));
        entry.lease_until = None;
        assert_eq!(entry.waits(now), Some(Waits::Anybody));
        entry.message = Some(MessageId(uuid::Uuid::nil()));
        assert_eq!(entry.waits(now), Some(Waits::Message(MessageId(uuid::Uuid::nil()))));
        entry.status = Status::Failed;
        assert_eq!(entry.waits(now), None);
    }
}
