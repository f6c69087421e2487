//! Every key that there is: its type, its default, what a change of it needs, and what it means. The reader, the listing, the
//! comparison of two configurations, the environment's names and the table of `docs/configuration.md` all go by this one list.

/// What a key's value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole number, from the first to the second.
    Whole(u64, u64),
    /// The same, or `"never"`.
    WholeOrNever(u64, u64),
    /// A number, from the first to the second.
    Real(f64, f64),
    /// `true` or `false`.
    Switch,
    /// Text, checked where it is used.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A list of whole numbers, each from the first to the second.
    Wholes(u64, u64),
    /// A list of waits in seconds, at least one.
    Waits,
    /// Names, each with a whole number from the first to the second.
    WholeOf(u64, u64),
    /// Names, each with text, or with where to read it: `{ env = "NAME" }` or `{ file = "PATH" }`.
    Headers,
}

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A running relay takes it up.
    AtOnce,
    /// With the next start of the relay.
    Restart,
    /// When `posthouse migrate` has written it into the store: it binds producers.
    Migrate,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its section and name; those of a route begin with `route`.
    pub path: &'static str,
    /// What its value must be.
    pub kind: Kind,
    /// Its default, as one would write it; empty when there is none.
    pub default: &'static str,
    /// What holds when it is not set and there is no default.
    pub unset: &'static str,
    /// When a change of it takes effect.
    pub change: Change,
    /// Its value may hold a secret: no error repeats it, and it is shown in part.
    pub hidden: bool,
    /// What it means.
    pub meaning: &'static str,
}

impl Key {
    /// Its last part.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The section that it is in.
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    const fn restart(mut self) -> Self {
        self.change = Change::Restart;
        self
    }

    const fn migrate(mut self) -> Self {
        self.change = Change::Migrate;
        self
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }
}

/// A key with a default.
const fn key(path: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Key {
    Key {
        path,
        kind,
        default,
        unset: "",
        change: Change::AtOnce,
        hidden: false,
        meaning,
    }
}

/// A key without a default.
const fn bare(path: &'static str, kind: Kind, unset: &'static str, meaning: &'static str) -> Key {
    Key {
        unset,
        ..key(path, kind, "", meaning)
    }
}

/// A day in milliseconds.
const DAY: u64 = 24 * 3600 * 1000;
const AS_OUTBOX: &str = "as in `[outbox]`";
const AS_BREAKER: &str = "as in `[breaker]`";

/// Every key, by section, in the order of the documentation.
pub const KEYS: &[Key] = &[
    key(
        "store.url",
        Kind::Text,
        "\"sqlite://posthouse.db\"",
        "The database: `sqlite://PATH` or `postgres://USER@HOST/DATABASE[?schema=NAME]`; for SurrealDB see `docs/surrealdb.md`.",
    )
    .restart()
    .hidden(),
    bare(
        "store.direct_url",
        Kind::Text,
        "the same as `url`",
        "PostgreSQL: a URL past any pooler, for `LISTEN`, which a pooler in transaction mode does not carry.",
    )
    .restart()
    .hidden(),
    key(
        "store.namespaces",
        Kind::Texts,
        "[]",
        "The namespaces that are served there; all when empty.",
    )
    .restart(),
    bare(
        "outbox.name",
        Kind::Text,
        "`relay-` and the process id",
        "What the relay is called in leases, attempts and `stats`. A label, never a fence.",
    )
    .restart(),
    key(
        "outbox.lease_ms",
        Kind::Whole(100, DAY),
        "15000",
        "How long a lease lasts before it must be renewed; so long is what a dead relay held left alone.",
    )
    .restart(),
    key(
        "outbox.profile",
        Kind::Word(&["balanced", "throughput", "latency"]),
        "\"balanced\"",
        "What the relay is set for: the three keys that follow, where they are not set.",
    )
    .restart(),
    bare(
        "outbox.batch",
        Kind::Whole(1, 10_000),
        "500; `throughput` 1000, `latency` 50",
        "The most messages of one claim.",
    )
    .restart(),
    bare(
        "outbox.concurrency",
        Kind::Whole(1, 100_000),
        "2000; `throughput` 8000, `latency` 500",
        "The most messages in flight in this relay, sent or waiting for their turn.",
    )
    .restart(),
    bare(
        "outbox.poll_ms",
        Kind::Whole(10, 60_000),
        "500; `latency` 100",
        "How often it looks for work when nobody wakes it.",
    )
    .restart(),
    key(
        "outbox.grace_ms",
        Kind::Whole(0, 3_600_000),
        "25000",
        "How long sends may go on after it was told to stop.",
    )
    .restart(),
    key(
        "outbox.in_flight_bytes",
        Kind::Whole(65_536, 1 << 40),
        "67108864",
        "The most bytes of payload in flight; a larger message goes alone.",
    )
    .restart(),
    key(
        "outbox.max_attempts",
        Kind::Whole(1, 1000),
        "12",
        "The store's default attempt budget: leases in all before a message is dead that was enqueued without a budget.",
    )
    .migrate(),
    key(
        "outbox.retry_after_max_ms",
        Kind::Whole(0, DAY),
        "3600000",
        "A destination's own wish (`Retry-After`) is honoured up to this.",
    ),
    key(
        "outbox.payload_max_bytes",
        Kind::Whole(0, 16 << 20),
        "262144",
        "The largest payload that may be enqueued.",
    )
    .migrate(),
    key(
        "outbox.require_tenant",
        Kind::Switch,
        "false",
        "Refuse messages without a tenant.",
    )
    .migrate(),
    key(
        "outbox.backoff.base_ms",
        Kind::Whole(0, DAY),
        "500",
        "The first wait after a failure.",
    ),
    key(
        "outbox.backoff.factor",
        Kind::Real(1.0, 100.0),
        "2.0",
        "What each wait is multiplied by.",
    ),
    key(
        "outbox.backoff.jitter",
        Kind::Real(0.0, 1.0),
        "0.3",
        "The part of a wait that chance may add or take.",
    ),
    key(
        "outbox.backoff.cap_ms",
        Kind::Whole(0, 30 * DAY),
        "300000",
        "The longest wait before jitter.",
    ),
    key(
        "outbox.backoff.floor_ms",
        Kind::Whole(0, DAY),
        "1",
        "The shortest wait after jitter.",
    ),
    bare(
        "outbox.backoff.table_s",
        Kind::Waits,
        "not used",
        "The waits themselves, in seconds, in place of the five keys above; the last one repeats.",
    ),
    key(
        "retention.ended_days",
        Kind::WholeOrNever(1, 3660),
        "\"never\"",
        "How long after its end a message in the state `done` is kept with its attempts; and what consumers and the participants of sagas have done, so longer than a saga may take. Dead letters stay.",
    )
    .restart(),
    key(
        "retention.dead_days",
        Kind::WholeOrNever(1, 3660),
        "\"never\"",
        "How long after its end a dead letter is kept, cancelled ones included. One that blocks its order key or holds a saga stays. On PostgreSQL the relay's role must be a member of `posthouse_operator`.",
    )
    .restart(),
    key(
        "retention.dedupe_days",
        Kind::WholeOrNever(1, 3660),
        "7",
        "How long after its message's end a dedupe key still answers.",
    )
    .migrate(),
    bare(
        "tenants.max_in_flight",
        Kind::Whole(1, 100_000),
        "no limit but `outbox.concurrency`",
        "The most messages in flight for any one tenant in this relay.",
    ),
    key(
        "tenants.weights",
        Kind::WholeOf(1, 1000),
        "{}",
        "Shares of the tenants in each round; 1 for those not named.",
    )
    .restart(),
    key(
        "tenants.caps",
        Kind::WholeOf(1, 100_000),
        "{}",
        "The most messages in flight for the tenants named, in place of `max_in_flight`.",
    ),
    key(
        "breaker.enabled",
        Kind::Switch,
        "true",
        "Whether a destination that fails is left alone for a while.",
    ),
    key(
        "breaker.failures",
        Kind::Whole(1, 1000),
        "10",
        "So many failed sends in a row open it.",
    ),
    key(
        "breaker.open_ms",
        Kind::Whole(1, DAY),
        "5000",
        "How long nothing is sent then. After it one is sent, and with each that arrives one more at a time.",
    ),
    key(
        "breaker.cap_ms",
        Kind::Whole(1, DAY),
        "60000",
        "The longest that nothing is sent: the time doubles with each trial that fails.",
    ),
    key(
        "explicit.http",
        Kind::Texts,
        "[]",
        "Hosts (`shop.example`, `*.shop.example`) that a topic `http:URL` may name. None when empty: a producer must not aim the relay.",
    ),
    key(
        "explicit.allow",
        Kind::Texts,
        "[]",
        "Hosts and networks (`10.1.0.0/16`) that such a topic may send to although they are private; its host must be listed in `http` too.",
    ),
    key(
        "admin.bind",
        Kind::Text,
        "\"127.0.0.1:7878\"",
        "Where `/livez`, `/readyz` and `/metrics` answer; `\"off\"` for nowhere.",
    )
    .restart(),
    key(
        "admin.trusted_proxy",
        Kind::Switch,
        "false",
        "Something in front of it authenticates and encrypts. Without it only loopback addresses are accepted.",
    )
    .restart(),
    key(
        "log.format",
        Kind::Word(&["text", "json"]),
        "\"text\"",
        "How lines are written.",
    )
    .restart(),
    key(
        "log.level",
        Kind::Word(&["error", "warn", "info", "debug", "trace"]),
        "\"info\"",
        "What is worth a line.",
    )
    .restart(),
    bare(
        "route.topic",
        Kind::Text,
        "required",
        "The topics, `*` for any text. The first route that matches serves.",
    ),
    bare(
        "route.to",
        Kind::Text,
        "required",
        "Where they go: `https://HOST/PATH`.",
    )
    .hidden(),
    bare(
        "route.name",
        Kind::Text,
        "scheme, host and port of `to` and a hash",
        "The destination's name, to pause and resume it by. Each has its own. Unset it is as `https://shop.example#097d5636`, for `https://shop.example/hooks`.",
    ),
    key(
        "route.timeout_ms",
        Kind::Whole(1, DAY),
        "10000",
        "How long one send may take; shorter than the lease by more than a tenth of it.",
    ),
    key(
        "route.concurrency",
        Kind::Whole(1, 100_000),
        "16",
        "How many sends may be under way at a time.",
    ),
    bare(
        "route.rate",
        Kind::Text,
        "no limit",
        "The most sends, by this relay: `\"100/s\"`, `\"10/m\"`, `\"500/h\"`.",
    ),
    bare(
        "route.on_dead",
        Kind::Word(&["pass", "block"]),
        "as the message says",
        "Whether a dead message lets later ones of its order key pass.",
    ),
    bare(
        "route.secret_env",
        Kind::Text,
        "not signed",
        "The variable that holds the secret which signs what is sent.",
    )
    .hidden(),
    bare(
        "route.secret_file",
        Kind::Text,
        "not signed",
        "The same from a file, which nobody else may read.",
    )
    .hidden(),
    bare(
        "route.second_secret_env",
        Kind::Text,
        "one signature",
        "A second secret, while receivers change from one to the other.",
    )
    .hidden(),
    bare(
        "route.second_secret_file",
        Kind::Text,
        "one signature",
        "The same from a file.",
    )
    .hidden(),
    key(
        "route.allow_private",
        Kind::Switch,
        "false",
        "Send to loopback and private addresses too; never to metadata services.",
    ),
    key(
        "route.allow",
        Kind::Texts,
        "[]",
        "Hosts and networks (`10.1.0.0/16`) that may be sent to although they are private.",
    ),
    key(
        "route.headers",
        Kind::Headers,
        "{}",
        "Headers to send: text, or `{ env = \"NAME\" }`, or `{ file = \"PATH\" }`.",
    )
    .hidden(),
    key(
        "route.reject",
        Kind::Wholes(300, 599),
        "[400, 410, 422]",
        "Answers that make a message dead at once; other failures are tried again.",
    ),
    key(
        "route.reuse_receipts",
        Kind::Switch,
        "false",
        "Content that was delivered there before is not sent again, but settled with the earlier receipt.",
    ),
    bare(
        "route.retry.max_attempts",
        Kind::Whole(1, 1000),
        "as the message says",
        "The attempt budget of every message that goes this way, in place of the message's own.",
    ),
    bare(
        "route.retry.base_ms",
        Kind::Whole(0, DAY),
        AS_OUTBOX,
        "The first wait after a failure.",
    ),
    bare(
        "route.retry.factor",
        Kind::Real(1.0, 100.0),
        AS_OUTBOX,
        "What each wait is multiplied by.",
    ),
    bare(
        "route.retry.jitter",
        Kind::Real(0.0, 1.0),
        AS_OUTBOX,
        "The part of a wait that chance may add or take.",
    ),
    bare(
        "route.retry.cap_ms",
        Kind::Whole(0, 30 * DAY),
        AS_OUTBOX,
        "The longest wait before jitter.",
    ),
    bare(
        "route.retry.floor_ms",
        Kind::Whole(0, DAY),
        AS_OUTBOX,
        "The shortest wait after jitter.",
    ),
    bare(
        "route.retry.table_s",
        Kind::Waits,
        AS_OUTBOX,
        "The waits themselves, in seconds, in place of the five keys above.",
    ),
    bare(
        "route.breaker.enabled",
        Kind::Switch,
        AS_BREAKER,
        "`breaker = false` is short for it.",
    ),
    bare(
        "route.breaker.failures",
        Kind::Whole(1, 1000),
        AS_BREAKER,
        "So many failed sends in a row open it.",
    ),
    bare(
        "route.breaker.open_ms",
        Kind::Whole(1, DAY),
        AS_BREAKER,
        "How long nothing is sent then.",
    ),
    bare(
        "route.breaker.cap_ms",
        Kind::Whole(1, DAY),
        AS_BREAKER,
        "The longest that nothing is sent.",
    ),
];

/// Sections of later versions: they are known, and refused.
pub const LATER: &[&str] = &["saga", "ledger", "destination", "otlp"];

/// The key of this name in this section.
pub fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section() == section && key.name() == name)
}

/// What may stand in a section: its keys and the tables in it.
pub fn names_in(section: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for key in KEYS {
        let rest = match section {
            "" => Some(key.path),
            _ => key.path.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')),
        };
        let Some(name) = rest.and_then(|rest| rest.split('.').next()) else {
            continue;
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The variable that sets a key; none for those of routes, which are in the file alone.
pub fn variable(path: &str) -> Option<String> {
    let written = path.to_ascii_uppercase().replace('.', "__").replace('-', "_");
    (!path.starts_with("route.")).then(|| format!("POSTHOUSE_{written}"))
}

/// The nearest of these names, if one is near.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |name: &&'a str| likeness(word, name);
    names.into_iter().max_by_key(near).filter(|name| near(name) > 800)
}

/// How alike two names are: 1000 when they are the same.
pub fn likeness(one: &str, other: &str) -> u32 {
    (strsim::jaro_winkler(&one.to_lowercase(), &other.to_lowercase()) * 1000.0) as u32
}
