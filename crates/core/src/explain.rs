//! Why a message is not delivered: one answer for each cause, decided from facts.

use serde::{Serialize, Serializer, ser::SerializeMap};
use std::fmt;

use crate::{
    Attempt, AttemptOutcome, DeadReason, MessageId, MessageView, State, Timestamp,
    presence::{Breaker, Pause, RelayView, budget},
    topic::shown,
};

/// What a store knows that bears on one message.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The store's clock.
    pub now: Timestamp,
    /// The message.
    pub message: MessageView,
    /// Its last attempt.
    pub last: Option<Attempt>,
    /// The one that must end before it: the first of its order key, or one that is in flight.
    pub ahead: Option<MessageView>,
    /// Whether it is dead or quarantined and holds its order key.
    pub blocks: bool,
    /// Whether an operator declared it delivered.
    pub resolved: bool,
    /// The relays that have told of themselves.
    pub relays: Vec<RelayView>,
    /// The destinations that are paused.
    pub pauses: Vec<Pause>,
}

/// A reason why a message is where it is. The text of each says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was delivered.
    Delivered {
        /// When.
        at: Option<Timestamp>,
        /// By whom.
        worker: Option<String>,
    },
    /// It was replaced by one message for each of its destinations.
    Expanded {
        /// When.
        at: Option<Timestamp>,
    },
    /// An operator said that it was delivered.
    Resolved {
        /// When.
        at: Option<Timestamp>,
    },
    /// Its saga went on without it.
    Withdrawn {
        /// Which.
        saga: crate::SagaId,
        /// When.
        at: Option<Timestamp>,
    },
    /// What was answered needs nobody: its saga goes on from there.
    Concluded {
        /// Which.
        saga: crate::SagaId,
        /// What was said.
        error: Option<String>,
    },
    /// It is given up.
    Dead {
        /// The saga that says what becomes of it.
        saga: Option<crate::SagaId>,
        /// Why.
        reason: Option<DeadReason>,
        /// After how many attempts.
        attempts: u32,
        /// What the last one said.
        error: Option<String>,
        /// Whether it holds up its order key.
        blocks: bool,
    },
    /// An operator holds it.
    Quarantined {
        /// The operator's note.
        note: Option<String>,
        /// Whether it holds up its order key.
        blocks: bool,
    },
    /// Somebody is sending it.
    Leased {
        /// Who.
        worker: String,
        /// Until when at most.
        until: Timestamp,
    },
    /// Its holder has not answered in time.
    LeaseExpired {
        /// Who held it.
        worker: String,
        /// Until when.
        until: Timestamp,
    },
    /// Its deliver-by has passed.
    Lapsed {
        /// When.
        deliver_by: Timestamp,
        /// The saga whose deadline that is.
        saga: Option<crate::SagaId>,
    },
    /// Another message of its order key comes first.
    Behind {
        /// Which.
        id: MessageId,
        /// Where that one stands.
        state: State,
        /// When that one is due, if it waits.
        due_at: Option<Timestamp>,
    },
    /// It is to be sent later.
    Delayed {
        /// When.
        due_at: Timestamp,
    },
    /// It failed, and is tried again.
    BackedOff {
        /// When.
        due_at: Timestamp,
        /// How often it was tried.
        attempts: u32,
        /// How often it will be.
        max_attempts: u32,
        /// What the last attempt said.
        error: Option<String>,
    },
    /// No relay is there.
    NoRelay,
    /// Relays are there, but none sends this topic of this namespace.
    NoRoute {
        /// The topic, as it is [`shown`].
        topic: String,
        /// The namespace.
        namespace: String,
    },
    /// An operator paused its destination.
    Paused {
        /// Which.
        destination: String,
        /// Who.
        actor: String,
        /// Why.
        note: String,
    },
    /// Its destination fails so often that nothing is sent to it.
    BreakerOpen {
        /// Which.
        destination: String,
    },
    /// Its destination is at its rate limit.
    RateLimited {
        /// Which.
        destination: String,
    },
    /// Its tenant is at its limit.
    TenantLimited {
        /// Which.
        tenant: String,
    },
    /// Nothing is in its way.
    Free,
}

/// Every cause that applies, the one that must change first in front.
pub fn explain(facts: &Facts) -> Vec<Cause> {
    let m = &facts.message;
    // What was said before a replay is another story, and nobody cancels for what a destination said.
    let of_this_life = facts.last.as_ref().is_none_or(|a| a.generation == m.generation);
    let told = of_this_life && m.reason != Some(DeadReason::Cancelled);
    let error = || m.last_error.clone().or_else(|| m.last_code.clone()).filter(|_| told);
    let standing = match m.state {
        State::Done if facts.resolved => Some(of_saga(facts).unwrap_or(Cause::Resolved { at: m.finished_at })),
        State::Done
            if facts
                .last
                .as_ref()
                .is_some_and(|a| a.outcome == AttemptOutcome::Expanded) =>
        {
            Some(Cause::Expanded { at: m.finished_at })
        }
        State::Done => Some(of_saga(facts).unwrap_or_else(|| Cause::Delivered {
            at: m.finished_at,
            worker: facts.last.as_ref().map(|a| a.worker.clone()),
        })),
        State::Dead => Some(Cause::Dead {
            saga: crate::lease::saga_of(m.kind, m.parent),
            reason: m.reason,
            attempts: m.attempts,
            error: error(),
            blocks: facts.blocks,
        }),
        State::Quarantined => Some(Cause::Quarantined {
            note: m.note.clone().filter(|n| !n.is_empty()),
            blocks: facts.blocks,
        }),
        State::Leased => {
            let (worker, until) = (m.worker.clone().unwrap_or_default(), m.lease_until.unwrap_or(facts.now));
            Some(if until > facts.now {
                Cause::Leased { worker, until }
            } else {
                Cause::LeaseExpired { worker, until }
            })
        }
        State::Pending => None,
    };
    if let Some(standing) = standing {
        return vec![standing];
    }
    let mut causes = Vec::new();
    if let Some(deliver_by) = m.deliver_by.filter(|at| *at <= facts.now) {
        let saga = crate::lease::saga_of(m.kind, m.parent);
        causes.push(Cause::Lapsed { deliver_by, saga });
    }
    if let Some(ahead) = &facts.ahead {
        causes.push(Cause::Behind {
            id: ahead.id,
            state: ahead.state,
            due_at: ahead
                .due_at
                .filter(|at| ahead.state == State::Pending && *at > facts.now),
        });
    }
    if let Some(due_at) = m.due_at.filter(|at| *at > facts.now) {
        causes.push(if m.attempts == 0 {
            Cause::Delayed { due_at }
        } else {
            Cause::BackedOff {
                due_at,
                attempts: m.attempts,
                max_attempts: budget(m, &facts.relays),
                error: error(),
            }
        });
    }
    causes.extend(on_the_way(m, &facts.relays, &facts.pauses));
    if causes.is_empty() {
        causes.push(Cause::Free);
    }
    causes
}

/// What is in the way between the store and the destinations of a message. A cause applies when it applies to every relay that
/// could send it.
pub fn on_the_way(m: &MessageView, relays: &[RelayView], pauses: &[Pause]) -> Vec<Cause> {
    let live: Vec<_> = relays.iter().filter(|r| r.live).map(|r| &r.relay).collect();
    if live.is_empty() {
        return vec![Cause::NoRelay];
    }
    let serving: Vec<_> = live
        .into_iter()
        .filter_map(|r| r.serves(&m.namespace, &m.topic).map(|to| (r, to)))
        .filter(|(_, to)| m.destination.as_ref().is_none_or(|own| to.contains(own)))
        .collect();
    let Some((_, destinations)) = serving.first() else {
        return vec![Cause::NoRoute {
            topic: shown(&m.topic).into_owned(),
            namespace: m.namespace.clone(),
        }];
    };
    let mut causes = Vec::new();
    let own = m.destination.as_ref().map(std::slice::from_ref);
    for name in own.unwrap_or(destinations) {
        let all = |ill: &dyn Fn(&crate::presence::Health) -> bool| serving.iter().all(|(r, _)| ill(&r.health(name)));
        if let Some(pause) = pauses.iter().find(|p| p.destination == *name) {
            causes.push(Cause::Paused {
                destination: name.clone(),
                actor: pause.actor.clone(),
                note: pause.note.clone(),
            });
        }
        if all(&|h| h.breaker == Breaker::Open) {
            causes.push(Cause::BreakerOpen {
                destination: name.clone(),
            });
        }
        if all(&|h| h.limited) {
            causes.push(Cause::RateLimited {
                destination: name.clone(),
            });
        }
    }
    if serving.iter().all(|(r, _)| r.limited_tenants.contains(&m.tenant)) {
        causes.push(Cause::TenantLimited {
            tenant: m.tenant.clone(),
        });
    }
    causes
}

/// A message of a saga that has served, although its destination did not say that it was done.
fn of_saga(facts: &Facts) -> Option<Cause> {
    let m = &facts.message;
    let saga = crate::lease::saga_of(m.kind, m.parent)?;
    // Operators' verbs leave what belongs to a saga to the saga: it took this back itself.
    match facts.last.as_ref().filter(|_| !facts.resolved) {
        None => Some(Cause::Withdrawn {
            saga,
            at: m.finished_at,
        }),
        Some(last) if matches!(last.outcome, AttemptOutcome::Delivered | AttemptOutcome::Duplicate) => None,
        Some(last) => Some(Cause::Concluded {
            saga,
            error: last.error.clone().or_else(|| last.code.clone()),
        }),
    }
}

impl Cause {
    /// A stable word for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Expanded { .. } => "expanded",
            Self::Resolved { .. } => "resolved",
            Self::Withdrawn { .. } => "withdrawn",
            Self::Concluded { .. } => "concluded",
            Self::Dead { .. } => "dead",
            Self::Quarantined { .. } => "quarantined",
            Self::Leased { .. } => "leased",
            Self::LeaseExpired { .. } => "lease_expired",
            Self::Lapsed { .. } => "lapsed",
            Self::Behind { .. } => "behind",
            Self::Delayed { .. } => "delayed",
            Self::BackedOff { .. } => "backed_off",
            Self::NoRelay => "no_relay",
            Self::NoRoute { .. } => "no_route",
            Self::Paused { .. } => "paused",
            Self::BreakerOpen { .. } => "breaker_open",
            Self::RateLimited { .. } => "rate_limited",
            Self::TenantLimited { .. } => "tenant_limited",
            Self::Free => "free",
        }
    }

    /// The message, destination or tenant to look at next.
    pub fn subject(&self) -> Option<String> {
        match self {
            Self::Behind { id, .. } => Some(id.to_string()),
            Self::Leased { worker, .. } | Self::LeaseExpired { worker, .. } => Some(worker.clone()),
            Self::Paused { destination, .. }
            | Self::BreakerOpen { destination }
            | Self::RateLimited { destination } => Some(destination.clone()),
            Self::TenantLimited { tenant } => Some(tenant.clone()),
            Self::NoRoute { topic, .. } => Some(topic.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered { at, worker } => {
                f.write_str("it was delivered")?;
                at.map_or(Ok(()), |at| write!(f, " at {at}"))?;
                worker.as_ref().map_or(Ok(()), |worker| write!(f, " by {worker}"))
            }
            Self::Expanded { at } => {
                f.write_str("it was replaced by one message for each of its destinations")?;
                at.map_or(Ok(()), |at| write!(f, " at {at}"))
            }
            Self::Resolved { at } => {
                f.write_str("an operator declared it delivered")?;
                at.map_or(Ok(()), |at| write!(f, " at {at}"))?;
                f.write_str("; the audit tells who")
            }
            Self::Withdrawn { saga, at } => {
                f.write_str("its saga went on without it")?;
                at.map_or(Ok(()), |at| write!(f, " at {at}"))?;
                write!(f, ": posthouse saga show {saga}")
            }
            Self::Concluded { saga, error } => {
                f.write_str("it was sent, and not acknowledged")?;
                error.as_ref().map_or(Ok(()), |error| write!(f, " ({error})"))?;
                write!(
                    f,
                    "; what came of that, and whether it may have happened, its saga tells: posthouse saga show {saga}"
                )
            }
            Self::Dead {
                saga,
                reason,
                attempts,
                error,
                blocks,
            } => {
                let reason = reason.map_or("unknown", DeadReason::as_str);
                write!(
                    f,
                    "it is dead ({reason}) after {attempts} {}",
                    plural("attempt", *attempts)
                )?;
                error.as_ref().map_or(Ok(()), |error| write!(f, ": {error}"))?;
                if let Some(saga) = saga {
                    return write!(f, "; its saga waits for a person: posthouse saga show {saga}");
                }
                f.write_str(if *blocks {
                    "; it blocks its order key until it is replayed, resolved or discarded"
                } else {
                    "; replay it when the cause is gone, or discard it"
                })
            }
            Self::Quarantined { note, blocks } => {
                f.write_str("an operator holds it in quarantine")?;
                note.as_ref().map_or(Ok(()), |note| write!(f, " ({note})"))?;
                f.write_str(if *blocks {
                    "; it blocks its order key until it is replayed, cancelled, resolved or discarded"
                } else {
                    "; replay it to send it again"
                })
            }
            Self::Leased { worker, until } => write!(f, "{worker} is sending it, and holds it until {until} at most"),
            Self::LeaseExpired { worker, until } => write!(
                f,
                "{worker} held it until {until} and has not answered; the next claim or `posthouse repair` takes it back"
            ),
            Self::Lapsed { deliver_by, saga: None } => write!(
                f,
                "its deliver-by passed at {deliver_by}; a claim ends it as dead, unsent, when its turn comes"
            ),
            Self::Lapsed {
                deliver_by,
                saga: Some(id),
            } => write!(
                f,
                "the deadline of saga {id} passed at {deliver_by}; a relay reports it to the saga, unsent, when its turn comes"
            ),
            Self::Behind { id, state, due_at } => {
                write!(f, "message {id} of its order key comes first; that one is {state}")?;
                if matches!(state, State::Dead | State::Quarantined) {
                    f.write_str(", and blocks the key until it is replayed, resolved or discarded")?;
                }
                due_at.map_or(Ok(()), |at| write!(f, " and not due until {at}"))
            }
            Self::Delayed { due_at } => write!(
                f,
                "it is not due until {due_at}, as its producer asked, or a relay that gave it back unsent"
            ),
            Self::BackedOff {
                due_at,
                attempts,
                max_attempts,
                error,
            } => {
                write!(f, "attempt {attempts} of {max_attempts} failed")?;
                error.as_ref().map_or(Ok(()), |error| write!(f, " ({error})"))?;
                write!(f, "; it is tried again at {due_at}")
            }
            Self::NoRelay => f.write_str("no relay has told of itself on this store; start one, unless workers in plain SQL do the work, which tell nothing"),
            Self::NoRoute { topic, namespace } => write!(
                f,
                "no relay that is running has a route for topic {topic} of namespace {namespace}; {}",
                route_for(topic)
            ),
            Self::Paused {
                destination,
                actor,
                note,
            } => {
                write!(f, "{actor} paused the destination {destination}")?;
                if !note.is_empty() {
                    write!(f, " ({note})")?;
                }
                write!(f, "; `posthouse destinations resume {destination} --note TEXT` lets it go on")
            }
            Self::BreakerOpen { destination } => write!(
                f,
                "the destination {destination} fails so often that nothing is sent to it for now; it is tried again by itself"
            ),
            Self::RateLimited { destination } => {
                write!(
                    f,
                    "the destination {destination} is at its rate limit; it is sent when its turn comes"
                )
            }
            Self::TenantLimited { tenant } => {
                write!(f, "the tenant {tenant} is at its limit; it is sent when its turn comes")
            }
            Self::Free => f.write_str("nothing is in its way; the next claim takes it"),
        }
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("cause", self.code())?;
        map.serialize_entry("subject", &self.subject())?;
        map.serialize_entry("text", &self.to_string())?;
        map.end()
    }
}

/// What gives a topic a route.
pub fn route_for(topic: &str) -> &'static str {
    if topic.starts_with("http:") {
        "a relay sends there if its configuration lists the host: [explicit] http, and allow if it is private"
    } else if topic.starts_with("fn:") {
        "start the program whose relay has that function"
    } else {
        "add one to its configuration"
    }
}

fn plural(word: &str, n: u32) -> String {
    if n == 1 { word.to_owned() } else { format!("{word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Health, Relay, Route};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn later() -> Timestamp {
        NOW.plus(Duration::from_secs(5))
    }

    fn message(state: State) -> MessageView {
        MessageView {
            id: MessageId(uuid::Uuid::from_u128(1)),
            seq: 1,
            tenant: "acme".into(),
            namespace: "default".into(),
            topic: "orders".into(),
            order_key: None,
            dedupe_key: None,
            state,
            reason: None,
            attempts: 0,
            max_attempts: 12,
            epoch: 0,
            generation: 1,
            worker: None,
            lease_until: None,
            due_at: Some(NOW),
            deliver_by: None,
            created_at: NOW,
            updated_at: NOW,
            finished_at: None,
            last_code: None,
            last_error: None,
            content_type: "text/plain".into(),
            bytes: 0,
            digest: None,
            kind: crate::Kind::Message,
            parent: None,
            destination: None,
            note: None,
            unreadable: None,
        }
    }

    fn relay(breaker: Breaker) -> RelayView {
        RelayView {
            relay: Relay {
                name: "r1".into(),
                routes: vec![Route {
                    topic: "orders".into(),
                    destinations: vec!["shop".into()],
                    ..Route::default()
                }],
                destinations: vec![Health {
                    destination: "shop".into(),
                    breaker,
                    limited: false,
                }],
                ..Relay::default()
            },
            started_at: NOW,
            seen_at: NOW,
            live: true,
        }
    }

    fn facts(message: MessageView) -> Facts {
        Facts {
            now: NOW,
            message,
            last: None,
            ahead: None,
            blocks: false,
            resolved: false,
            relays: vec![relay(Breaker::Closed)],
            pauses: Vec::new(),
        }
    }

    fn attempt(outcome: AttemptOutcome) -> Attempt {
        Attempt {
            epoch: 1,
            generation: 1,
            attempt: 1,
            worker: "relay-a".into(),
            token: crate::LeaseToken(uuid::Uuid::nil()),
            outcome,
            code: None,
            error: None,
            receipt: None,
            started_at: NOW,
            finished_at: NOW,
        }
    }

    fn codes(facts: &Facts) -> Vec<&'static str> {
        explain(facts).iter().map(Cause::code).collect()
    }

    #[test]
    fn every_state_has_its_answer() {
        let with = |state, change: &dyn Fn(&mut Facts)| {
            let mut facts = facts(message(state));
            change(&mut facts);
            codes(&facts)
        };
        assert_eq!(with(State::Pending, &|_| ()), ["free"]);
        assert_eq!(with(State::Done, &|_| ()), ["delivered"]);
        assert_eq!(with(State::Done, &|f| f.resolved = true), ["resolved"]);
        let withdrawn = |f: &mut Facts| {
            (f.message.kind, f.message.parent) = (crate::Kind::Timer, Some(f.message.id));
            f.resolved = true;
        };
        assert_eq!(with(State::Done, &withdrawn), ["withdrawn"]);
        let answered = |outcome| {
            move |f: &mut Facts| {
                (f.message.kind, f.message.parent) = (crate::Kind::Step, Some(f.message.id));
                f.last = Some(attempt(outcome));
            }
        };
        assert_eq!(with(State::Done, &answered(AttemptOutcome::Delivered)), ["delivered"]);
        assert_eq!(with(State::Done, &answered(AttemptOutcome::Rejected)), ["concluded"]);
        let unsent = |f: &mut Facts| (f.message.kind, f.message.parent) = (crate::Kind::Step, Some(f.message.id));
        assert_eq!(with(State::Done, &unsent), ["withdrawn"]);
        // Each relay sees to the timers of sagas.
        let timer = |f: &mut Facts| f.message.topic = crate::saga::TIMER_TOPIC.into();
        assert_eq!(with(State::Pending, &timer), ["free"]);
        assert_eq!(with(State::Dead, &|_| ()), ["dead"]);
        assert_eq!(with(State::Quarantined, &|_| ()), ["quarantined"]);
        let held = |until| move |f: &mut Facts| f.message.lease_until = Some(until);
        assert_eq!(with(State::Leased, &held(later())), ["leased"]);
        assert_eq!(with(State::Leased, &held(NOW)), ["lease_expired"]);
        assert_eq!(with(State::Pending, &|f| f.message.due_at = Some(later())), ["delayed"]);
        let failed = |f: &mut Facts| (f.message.due_at, f.message.attempts) = (Some(later()), 2);
        assert_eq!(with(State::Pending, &failed), ["backed_off"]);
        assert_eq!(with(State::Pending, &|f| f.message.deliver_by = Some(NOW)), ["lapsed"]);
        let behind = |f: &mut Facts| f.ahead = Some(message(State::Dead));
        assert_eq!(with(State::Pending, &behind), ["behind"]);
        assert_eq!(with(State::Pending, &|f| f.relays.clear()), ["no_relay"]);
        assert_eq!(with(State::Pending, &|f| f.relays[0].live = false), ["no_relay"]);
        assert_eq!(
            with(State::Pending, &|f| f.message.topic = "other".into()),
            ["no_route"]
        );
        assert_eq!(
            with(State::Pending, &|f| f.relays[0] = relay(Breaker::Open)),
            ["breaker_open"]
        );
        assert_eq!(
            with(State::Pending, &|f| f.relays[0].relay.destinations[0].limited = true),
            ["rate_limited"]
        );
        assert_eq!(
            with(State::Pending, &|f| f.relays[0].relay.limited_tenants =
                vec!["acme".into()]),
            ["tenant_limited"]
        );
        let pause = Pause {
            destination: "shop".into(),
            at: NOW,
            actor: "op".into(),
            note: "maintenance".into(),
        };
        assert_eq!(with(State::Pending, &|f| f.pauses = vec![pause.clone()]), ["paused"]);
    }

    #[test]
    fn causes_add_up_and_a_relay_that_can_send_is_enough() {
        let mut told = facts(message(State::Pending));
        told.message.due_at = Some(later());
        told.relays = vec![relay(Breaker::Open)];
        assert_eq!(codes(&told), ["delayed", "breaker_open"]);
        told.relays.push(relay(Breaker::Closed));
        assert_eq!(codes(&told), ["delayed"]);
    }

    #[test]
    fn every_answer_is_a_sentence_that_says_what_to_do() {
        let mut told = facts(message(State::Dead));
        told.message.reason = Some(DeadReason::Exhausted);
        told.message.attempts = 1;
        told.message.last_error = Some("503 from the shop".into());
        assert_eq!(
            explain(&told)[0].to_string(),
            "it is dead (exhausted) after 1 attempt: 503 from the shop; replay it when the cause is gone, or discard it"
        );
    }

    /// One of each, as somebody might meet it.
    fn every_cause() -> Vec<Cause> {
        let now = Timestamp::from_micros(1_893_463_200_000_000);
        let (at, soon) = (Some(now), now.plus(Duration::from_secs(30)));
        let (worker, error) = ("relay-a".to_owned(), Some("503 Service Unavailable".to_owned()));
        let destination = "billing".to_owned();
        let saga = crate::SagaId(uuid::Uuid::from_u128(0x0197_6d0c_0000_7000_8000_0000_0000_0004));
        vec![
            Cause::Free,
            Cause::Delayed { due_at: soon },
            Cause::BackedOff {
                due_at: soon,
                attempts: 3,
                max_attempts: 12,
                error: error.clone(),
            },
            Cause::Behind {
                id: MessageId(uuid::Uuid::from_u128(0x0197_6d0c_0000_7000_8000_0000_0000_0004)),
                state: State::Leased,
                due_at: None,
            },
            Cause::Lapsed {
                deliver_by: now,
                saga: None,
            },
            Cause::Lapsed {
                deliver_by: now,
                saga: Some(crate::SagaId(uuid::Uuid::from_u128(
                    0x0197_6d0c_0000_7000_8000_0000_0000_0005,
                ))),
            },
            Cause::Leased {
                worker: worker.clone(),
                until: soon,
            },
            Cause::LeaseExpired {
                worker: worker.clone(),
                until: now,
            },
            Cause::NoRelay,
            Cause::NoRoute {
                topic: "invoice.sent".into(),
                namespace: "default".into(),
            },
            Cause::Paused {
                destination: destination.clone(),
                actor: "anna".into(),
                note: "moves to new servers".into(),
            },
            Cause::BreakerOpen {
                destination: destination.clone(),
            },
            Cause::RateLimited { destination },
            Cause::TenantLimited { tenant: "acme".into() },
            Cause::Dead {
                saga: None,
                reason: Some(DeadReason::Exhausted),
                attempts: 12,
                error,
                blocks: false,
            },
            Cause::Quarantined {
                note: Some("ask billing first".into()),
                blocks: true,
            },
            Cause::Delivered {
                at,
                worker: Some(worker),
            },
            Cause::Resolved { at },
            Cause::Expanded { at },
            Cause::Withdrawn { saga, at },
            Cause::Concluded {
                saga,
                error: Some("answered 422: card declined".into()),
            },
        ]
    }

    #[test]
    fn the_budget_that_will_be_applied_is_explained() {
        let failed = MessageView {
            attempts: 1,
            max_attempts: 2,
            due_at: Some(later()),
            ..message(State::Pending)
        };
        let told = |facts: &Facts| match explain(facts).remove(0) {
            Cause::BackedOff { max_attempts, .. } => max_attempts,
            other => panic!("{other:?}"),
        };
        let mut facts = facts(failed);
        assert_eq!(told(&facts), 2, "the message's own");
        facts.relays[0].relay.routes[0].max_attempts = Some(5);
        assert_eq!(told(&facts), 5, "the route's");
        facts.relays[0].live = false;
        assert_eq!(told(&facts), 2, "of a relay that is gone");
        facts.relays[0].live = true;
        let ended = |state| {
            budget(
                &MessageView {
                    state,
                    ..facts.message.clone()
                },
                &facts.relays,
            )
        };
        assert_eq!(
            (ended(State::Leased), ended(State::Dead), ended(State::Done)),
            (5, 2, 2)
        );
    }

    /// The guide has a row for each, in these words, and no other.
    #[test]
    fn the_guide_tells_every_answer() {
        let row = |cause: Cause| format!("| `{}` | {cause} |", cause.code());
        let rows: Vec<_> = every_cause().into_iter().map(row).collect();
        let page = include_str!("../../../docs/operating.md");
        let table = page
            .lines()
            .skip_while(|line| *line != "| cause | what `explain` says, for example |");
        let told: Vec<_> = table.skip(2).take_while(|line| line.starts_with('|')).collect();
        assert_eq!(told, rows, "{}", rows.join("\n"));
    }
}
