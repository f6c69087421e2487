//! What a producer writes: a message, checked before any database traffic.

use serde::Serialize;
use std::{fmt, str::FromStr, time::Duration};

use crate::{
    Digest, Headers, Invalid, Limits, MessageId, headers,
    ledger::{Binding, Fingerprint},
    saga::Ticket,
};

/// A message to enqueue. Immutable once enqueued.
///
/// ```
/// # use posthouse_core::Message;
/// let message = Message::json("order.placed", &serde_json::json!({ "order": 42 }))?
///     .tenant("acme")
///     .order_key("order-42")
///     .dedupe_key("order-42/placed");
/// # Ok::<(), posthouse_core::Invalid>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Made by the store when absent.
    pub id: Option<MessageId>,
    /// Whose it is: isolation and fairness. Empty means none.
    pub tenant: String,
    /// Which application owns it.
    pub namespace: String,
    /// What it is about; routes map topics to destinations.
    pub topic: String,
    /// Messages with the same namespace, tenant and key are sent one at a time, in order.
    pub order_key: Option<String>,
    /// Enqueued once for the same namespace, tenant, topic and key.
    pub dedupe_key: Option<String>,
    /// The body.
    pub payload: Vec<u8>,
    /// What the body is.
    pub content_type: String,
    /// Trace context, correlation, the user's own.
    pub headers: Headers,
    /// Its entry in the ledger: it is sent at most once under it, and its end is the entry's.
    pub ledger: Option<Binding>,
    /// Set by the engine: what a message of a saga is sent for.
    pub ticket: Option<Ticket>,
    /// Not claimable before this much time has passed.
    pub delay: Duration,
    /// Past this, the message is dead with reason `lapsed`, and never sent. A message of a saga is not dead then: its saga decides.
    pub deliver_in: Option<Duration>,
    /// Leases in all before the message is dead. The store's default when absent.
    pub max_attempts: Option<u32>,
    /// What a dead message does to its order key.
    pub on_dead: OnDead,
    /// What a taken dedupe key with other content answers.
    pub on_duplicate: OnDuplicate,
    /// Whether producers of the order key take turns.
    pub order: Order,
    /// Set by the engine: what the message is to it.
    pub kind: Kind,
    /// Set by the engine: the message that this one follows from.
    pub parent: Option<MessageId>,
    /// Set by the engine: the destination of a fan-out child.
    pub destination: Option<String>,
}

impl Kind {
    /// Whether a saga decides what becomes of it.
    pub const fn is_of_saga(self) -> bool {
        matches!(self, Self::Step | Self::Compensation | Self::Timer)
    }
}

impl Message {
    /// The namespace of a message that names none.
    pub const DEFAULT_NAMESPACE: &str = "default";

    /// A JSON message.
    pub fn json<T: Serialize + ?Sized>(topic: impl Into<String>, body: &T) -> Result<Self, Invalid> {
        let payload =
            serde_json::to_vec(body).map_err(|e| Invalid::new("payload", format!("cannot be written as JSON: {e}")))?;
        Ok(Self::bytes(topic, "application/json", payload))
    }

    /// A message with any content.
    pub fn bytes(topic: impl Into<String>, content_type: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            id: None,
            tenant: String::new(),
            namespace: Self::DEFAULT_NAMESPACE.to_owned(),
            topic: topic.into(),
            order_key: None,
            dedupe_key: None,
            payload: payload.into(),
            content_type: content_type.into(),
            headers: Headers::new(),
            ledger: None,
            ticket: None,
            delay: Duration::ZERO,
            deliver_in: None,
            max_attempts: None,
            on_dead: OnDead::Pass,
            on_duplicate: OnDuplicate::Refuse,
            order: Order::Strict,
            kind: Kind::Message,
            parent: None,
            destination: None,
        }
    }

    /// Sets the identity, to resolve an unknown commit by enqueueing again.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the order key.
    pub fn order_key(mut self, key: impl Into<String>) -> Self {
        self.order_key = Some(key.into());
        self
    }

    /// Sets the dedupe key.
    pub fn dedupe_key(mut self, key: impl Into<String>) -> Self {
        self.dedupe_key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sends it under this key of the ledger, of the message's tenant: not if that was done before, and never if the key was used for something else. What
    /// becomes of the message becomes of the entry.
    pub fn ledger(mut self, scope: impl Into<String>, key: impl Into<String>, fingerprint: Fingerprint) -> Self {
        self.ledger = Some(Binding {
            scope: scope.into(),
            key: key.into(),
            fingerprint,
        });
        self
    }

    /// Sends it no earlier than this long after the enqueue.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Gives it up, unsent, when this long has passed since the enqueue.
    pub fn deliver_in(mut self, within: Duration) -> Self {
        self.deliver_in = Some(within);
        self
    }

    /// Sets the attempt budget.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets what its death does to its order key.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// Sets what a taken dedupe key with other content answers.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.on_duplicate = on_duplicate;
        self
    }

    /// Lets producers of the order key commit in any order: faster for them, and order is then as good as their commits.
    pub fn relaxed(mut self) -> Self {
        self.order = Order::Relaxed;
        self
    }

    /// Makes it a follow-up of `parent`. Follow-ups never take a producer's turn, so a settlement never waits for one.
    pub fn follows(mut self, parent: MessageId) -> Self {
        self.kind = Kind::Child;
        self.parent = Some(parent);
        self.order = Order::Relaxed;
        self
    }

    /// The digest of its content.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.content_type, &self.payload)
    }

    /// Refuses what no store may accept, naming the field.
    pub fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        check_optional_name("tenant", &self.tenant)?;
        self.check_limits(limits)?;
        check_name("namespace", &self.namespace)?;
        check_topic(&self.topic)?;
        self.order_key.iter().try_for_each(|key| check_name("order_key", key))?;
        self.dedupe_key
            .iter()
            .try_for_each(|key| check_name("dedupe_key", key))?;
        check_name("content_type", &self.content_type)?;
        self.destination
            .iter()
            .try_for_each(|d| check_text("destination", d, Limits::DESTINATION_BYTES))?;
        headers::check(&self.headers)?;
        self.ledger.iter().try_for_each(Binding::check)?;
        self.check_times()?;
        match self.max_attempts {
            Some(n) if n == 0 || n > Limits::ATTEMPTS => Err(Invalid::new(
                "max_attempts",
                format!("{n} is not between 1 and {}", Limits::ATTEMPTS),
            )),
            _ => Ok(()),
        }
    }

    /// The part of [`check`](Self::check) that differs from store to store.
    pub fn check_limits(&self, limits: &Limits) -> Result<(), Invalid> {
        // A saga that is under way goes on.
        if limits.require_tenant && self.tenant.is_empty() && !self.kind.is_of_saga() {
            return Err(Invalid::new("tenant", "is empty, and this store requires one"));
        }
        let most = limits.payload_bytes.min(Limits::HARD_PAYLOAD_BYTES);
        if self.payload.len() > most {
            let size = self.payload.len();
            return Err(Invalid::new(
                "payload",
                format!(
                    "has {size} bytes, at most {most} are allowed; keep large objects elsewhere and send a reference"
                ),
            ));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Invalid> {
        if self.delay > Limits::FARTHEST {
            return Err(Invalid::new("delay", "is more than ten years"));
        }
        match self.deliver_in {
            // Its saga decides what becomes of a message that lapses, also of one that lapses at once.
            Some(_) if self.kind.is_of_saga() => Ok(()),
            Some(within) if within.is_zero() || within > Limits::FARTHEST => Err(Invalid::new(
                "deliver_in",
                "must be more than zero and at most ten years",
            )),
            Some(within) if within <= self.delay => Err(Invalid::new(
                "deliver_in",
                "ends before the delay does, so it could never be sent",
            )),
            _ => Ok(()),
        }
    }
}

/// Shows what it is about, never the payload.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// Prefixes of topics that name their destination themselves.
const DESTINATION_PREFIXES: [&str; 4] = ["http:", "bus:", "fn:", "custom:"];

pub(crate) fn check_topic(topic: &str) -> Result<(), Invalid> {
    let Some(prefix) = DESTINATION_PREFIXES.into_iter().find(|p| topic.starts_with(p)) else {
        return check_name("topic", topic);
    };
    check_text("topic", topic, Limits::DESTINATION_BYTES)?;
    let target = &topic[prefix.len()..];
    if target.is_empty() {
        return Err(Invalid::new("topic", format!("names no destination after {prefix:?}")));
    }
    let authority = target
        .split_once("//")
        .map_or("", |(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(""));
    if prefix == "http:" && authority.contains('@') {
        return Err(Invalid::new(
            "topic",
            "holds a user name or password in its URL; put credentials into the destination's configuration",
        ));
    }
    Ok(())
}

pub(crate) fn check_optional_name(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        Ok(())
    } else {
        check_name(field, text)
    }
}

pub(crate) fn check_name(field: &'static str, text: &str) -> Result<(), Invalid> {
    check_text(field, text, Limits::NAME_BYTES)
}

pub(crate) fn check_text(field: &'static str, text: &str, most: usize) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "is empty"));
    }
    if text.len() > most {
        return Err(Invalid::new(
            field,
            format!("has {} bytes, at most {most} are allowed", text.len()),
        ));
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, c)) => Err(Invalid::new(
            field,
            format!("holds the control character U+{:04X} at byte {at}", c as u32),
        )),
        None => Ok(()),
    }
}

macro_rules! word_enum {
    ($(#[$doc:meta])* $name:ident, $field:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word for it, in the database and everywhere else.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
        impl std::str::FromStr for $name {
            type Err = $crate::Invalid;
            fn from_str(text: &str) -> Result<Self, $crate::Invalid> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| {
                    let words: Vec<_> = Self::ALL.iter().map(|v| v.as_str()).collect();
                    $crate::Invalid::new($field, format!("{:?} is not one of {}", $crate::text::excerpt(text, 64), words.join(", ")))
                })
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                word.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use word_enum;

word_enum!(
    /// What a dead message does to the later ones of its order key.
    OnDead, "on_dead" {
        /// They go on.
        Pass = "pass",
        /// They wait until an operator has dealt with it.
        Block = "block",
    }
);
word_enum!(
    /// What an enqueue answers when its dedupe key is taken by a message with other content.
    OnDuplicate, "on_duplicate" {
        /// A conflict, and nothing is written.
        Refuse = "refuse",
        /// The existing message, as if the content were the same.
        Keep = "keep",
    }
);
word_enum!(
    /// How producers of one order key meet.
    Order, "order" {
        /// They take turns until commit, so the order of the messages is the order of the commits.
        Strict = "strict",
        /// They do not wait for each other; one that commits late may come after a younger one.
        Relaxed = "relaxed",
    }
);
word_enum!(
    /// What a message is to the engine.
    Kind, "kind" {
        /// An ordinary message.
        Message = "message",
        /// A follow-up of another message.
        Child = "child",
        /// A step of a saga, or the question whether it was done.
        Step = "step",
        /// What undoes a step of a saga.
        Compensation = "compensation",
        /// What says that a time of a saga is over; it is sent nowhere.
        Timer = "timer",
    }
);

/// What is counted, in the program of the producer, for each message that was enqueued and was not there before: also if its
/// transaction is rolled back in the end, of which nobody is told.
pub const ENQUEUED_TOTAL: &str = "posthouse_enqueued_total";

/// What is counted, by its name, for each saga that was started and was not there before, in the same way.
pub const STARTED_TOTAL: &str = "posthouse_saga_started_total";

/// The answer to an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enqueued {
    /// It was written, and exists if the transaction commits.
    New(MessageId),
    /// It was there already.
    Duplicate(MessageId),
}

impl Enqueued {
    /// The identity of the message that stands for it, new or not.
    pub const fn id(self) -> MessageId {
        match self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }

    /// How many of these were not there before: what [`ENQUEUED_TOTAL`] rises by.
    pub fn new_ones(answers: &[Self]) -> u64 {
        answers.iter().filter(|answer| matches!(answer, Self::New(_))).count() as u64
    }
}

/// Parses `90s`, `15m`, `2h`, `7d` or `250ms`, as users write delays.
pub fn parse_duration(field: &'static str, text: &str) -> Result<Duration, Invalid> {
    let bad = || {
        Invalid::new(
            field,
            format!(
                "{:?} is not a duration; write for instance 250ms, 30s, 15m, 2h or 7d",
                crate::text::excerpt(text, 32)
            ),
        )
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let number = u64::from_str(&text[..digits]).map_err(|_| bad())?;
    let millis: u64 = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::bytes("order.placed", "text/plain", "hello")
    }

    fn refused(message: Message) -> Invalid {
        message.check(&Limits::default()).unwrap_err()
    }

    #[test]
    fn a_plain_message_passes() {
        message().check(&Limits::default()).unwrap();
    }

    #[test]
    fn the_payload_limit_holds_to_the_byte() {
        let limits = Limits::default();
        Message::bytes("t", "text/plain", vec![0; 256 << 10])
            .check(&limits)
            .unwrap();
        let over = Message::bytes("t", "text/plain", vec![0; (256 << 10) + 1])
            .check(&limits)
            .unwrap_err();
        assert_eq!(over.field, "payload");
        assert!(over.problem.contains("262145"), "{over}");
    }

    #[test]
    fn no_configuration_raises_the_hard_payload_limit() {
        let limits = Limits {
            payload_bytes: usize::MAX,
            ..Limits::default()
        };
        assert!(
            Message::bytes("t", "text/plain", vec![0; (16 << 20) + 1])
                .check(&limits)
                .is_err()
        );
    }

    #[test]
    fn names_are_1_to_255_bytes_without_control_characters() {
        assert_eq!(
            refused(Message::bytes("x".repeat(300), "text/plain", "")).to_string(),
            "topic: has 300 bytes, at most 255 are allowed"
        );
        assert_eq!(
            refused(message().order_key("a\0b")).to_string(),
            "order_key: holds the control character U+0000 at byte 1"
        );
        assert_eq!(refused(message().dedupe_key("")).to_string(), "dedupe_key: is empty");
        assert_eq!(refused(message().namespace("")).field, "namespace");
        assert_eq!(refused(message().tenant("x".repeat(256))).field, "tenant");
        message()
            .tenant("")
            .order_key("ü".repeat(127))
            .check(&Limits::default())
            .unwrap();
    }

    #[test]
    fn a_required_tenant_is_required() {
        let limits = Limits {
            require_tenant: true,
            ..Limits::default()
        };
        assert_eq!(message().check(&limits).unwrap_err().field, "tenant");
        message().tenant("acme").check(&limits).unwrap();
    }

    #[test]
    fn a_destination_topic_may_be_long_but_carries_no_credentials() {
        let url = |host: &str| Message::bytes(format!("http:https://{host}/{}", "p".repeat(500)), "text/plain", "");
        url("example.com").check(&Limits::default()).unwrap();
        assert!(refused(url("user:secret@example.com")).problem.contains("password"));
        assert!(
            refused(Message::bytes("fn:", "text/plain", ""))
                .problem
                .contains("no destination")
        );
        assert!(
            refused(Message::bytes(format!("fn:{}", "x".repeat(2046)), "text/plain", ""))
                .problem
                .contains("2048")
        );
    }

    #[test]
    fn a_message_that_lapses_before_it_is_due_is_refused() {
        let hour = Duration::from_secs(3600);
        assert_eq!(refused(message().delay(hour).deliver_in(hour)).field, "deliver_in");
        message()
            .delay(hour)
            .deliver_in(hour * 2)
            .check(&Limits::default())
            .unwrap();
        assert_eq!(refused(message().deliver_in(Duration::ZERO)).field, "deliver_in");
        assert_eq!(refused(message().delay(Duration::MAX)).field, "delay");
    }

    #[test]
    fn an_attempt_budget_is_between_1_and_1000() {
        for bad in [0, 1001] {
            assert_eq!(refused(message().max_attempts(bad)).field, "max_attempts");
        }
        message().max_attempts(1000).check(&Limits::default()).unwrap();
    }

    #[test]
    fn debug_output_shows_no_payload() {
        assert!(!format!("{:?}", Message::bytes("t", "text/plain", "s3cret")).contains("s3cret"));
    }

    #[test]
    fn durations_are_written_as_people_write_them() {
        assert_eq!(parse_duration("delay", "250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("delay", "7d"), Ok(Duration::from_secs(604_800)));
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1w",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(parse_duration("delay", bad).unwrap_err().field, "delay", "{bad}");
        }
    }

    #[test]
    fn words_parse_back() {
        for v in OnDead::ALL {
            assert_eq!(v.as_str().parse::<OnDead>(), Ok(*v));
        }
        assert_eq!(
            "maybe".parse::<OnDuplicate>().unwrap_err().to_string(),
            "on_duplicate: \"maybe\" is not one of refuse, keep"
        );
    }
}
