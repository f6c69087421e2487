-- The tables of the outbox. A message's state is the table its live record is in:
--   pending in ready, sched or keyed; leased in leased; dead or quarantined in dead; done in none of them.
-- Times are microseconds since 1970. Everything here is readable and writable by SQLite 3.40.

-- What this schema is, and the oldest program version that can still work with it.
CREATE TABLE posthouse_schema (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    version  INTEGER NOT NULL,
    oldest   INTEGER NOT NULL
) STRICT;

-- The one clock. julianday() counts whole milliseconds in every version; a test may replace the body of this view.
CREATE VIEW posthouse_clock (now) AS
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000;

-- Those that take turns in a claim: one lane for each namespace and tenant.
CREATE TABLE posthouse_lane (
    lane      INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    tenant    TEXT NOT NULL,
    UNIQUE (namespace, tenant)
) STRICT;

-- The lane that was served last. In the database, because each relay is another process and turns are everybody's.
CREATE TABLE posthouse_turn (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    lane     INTEGER NOT NULL
) STRICT;
INSERT INTO posthouse_turn (only_one, lane) VALUES (1, 0);

-- What every producer is held to, in whatever language. Nothing is here until somebody has said so. dedupe_for is in microseconds;
-- -1 is for ever.
CREATE TABLE posthouse_settings (
    only_one       INTEGER PRIMARY KEY CHECK (only_one = 1),
    payload_bytes  INTEGER NOT NULL CHECK (payload_bytes BETWEEN 0 AND 16777216),
    require_tenant INTEGER NOT NULL CHECK (require_tenant IN (0, 1)),
    max_attempts   INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
    dedupe_for     INTEGER NOT NULL CHECK (dedupe_for >= -1)
) STRICT;

-- What was enqueued; never updated, but for on_dead, which a settlement stamps anew. AUTOINCREMENT, because a number must not come back after the last message was
-- pruned, and because places in a line are drawn from the same sequence (sqlite_sequence).
-- The payload is last, so that reading the other columns never follows its overflow pages. The constraints call no function: a function would make SQLite keep a
-- journal of every page that an insert touches. They use no IN either: for each insert SQLite would build a table of its values. The trigger of
-- posthouse_enqueue, and the Rust crate, check the rest.
CREATE TABLE posthouse_message (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           BLOB NOT NULL UNIQUE,
    lane         INTEGER NOT NULL,
    topic        TEXT NOT NULL,
    order_key    TEXT,
    dedupe_key   TEXT,
    content_type TEXT NOT NULL,
    headers      TEXT,
    kind         TEXT NOT NULL CHECK (
        kind = 'message' OR kind = 'child' OR kind = 'step' OR kind = 'compensation' OR kind = 'timer'
    ),
    parent       BLOB CHECK (kind = 'message' OR parent IS NOT NULL),
    destination  TEXT,
    on_dead      TEXT NOT NULL CHECK (on_dead = 'pass' OR on_dead = 'block'),
    max_attempts INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
    digest       BLOB,
    dedupe_for   INTEGER,
    created_at   INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    deliver_by   INTEGER,
    bytes        INTEGER NOT NULL,
    payload      BLOB NOT NULL
) STRICT;

-- Due messages without an order key, by lane and place. A message that was never moved has pos = seq, so it is found
-- by its number without an index of its own; the index below holds only those that came back.
-- due_at and changed_at are NULL as long as the message's own due_at and created_at are the answer.
CREATE TABLE posthouse_ready (
    lane         INTEGER NOT NULL,
    pos          INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    releases     INTEGER NOT NULL,
    deliver_by   INTEGER,
    deduped      INTEGER NOT NULL,
    due_at       INTEGER,
    changed_at   INTEGER,
    released_by  BLOB,
    PRIMARY KEY (lane, pos)
) STRICT, WITHOUT ROWID;
CREATE INDEX posthouse_ready_moved ON posthouse_ready (seq) WHERE pos > seq;

-- Messages without an order key that are not due. wake_at is when to look: at due_at, or at deliver_by if that is first.
CREATE TABLE posthouse_sched (
    seq          INTEGER PRIMARY KEY,
    lane         INTEGER NOT NULL,
    wake_at      INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    releases     INTEGER NOT NULL,
    deliver_by   INTEGER,
    deduped      INTEGER NOT NULL,
    changed_at   INTEGER,
    released_by  BLOB
) STRICT;
CREATE INDEX posthouse_sched_wake ON posthouse_sched (wake_at, seq);
CREATE INDEX posthouse_sched_lane ON posthouse_sched (lane, wake_at, seq);

-- Pending messages with an order key, due or not, so that a delayed one still holds its key. Only the head of a key can
-- be claimed: it carries free = 1 when it is due, or wake_at when it is not yet; all others, and every message of a key
-- that is leased or blocked, carry neither.
CREATE TABLE posthouse_keyed (
    lane         INTEGER NOT NULL,
    key          TEXT NOT NULL,
    pos          INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    free         INTEGER,
    wake_at      INTEGER,
    due_at       INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    releases     INTEGER NOT NULL,
    deliver_by   INTEGER,
    deduped      INTEGER NOT NULL,
    changed_at   INTEGER,
    released_by  BLOB,
    PRIMARY KEY (lane, key, pos)
) STRICT, WITHOUT ROWID;
CREATE INDEX posthouse_keyed_free ON posthouse_keyed (lane, pos) WHERE free = 1;
CREATE INDEX posthouse_keyed_wake ON posthouse_keyed (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX posthouse_keyed_lane ON posthouse_keyed (lane, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX posthouse_keyed_moved ON posthouse_keyed (seq) WHERE pos > seq;

-- Messages under a lease. No index on the deadline: what is in flight is little, and every claim would pay for it.
CREATE TABLE posthouse_leased (
    seq          INTEGER PRIMARY KEY,
    token        BLOB NOT NULL,
    deadline     INTEGER NOT NULL,
    granted_at   INTEGER NOT NULL,
    worker       TEXT NOT NULL,
    lane         INTEGER NOT NULL,
    key          TEXT,
    pos          INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    releases     INTEGER NOT NULL,
    deliver_by   INTEGER,
    deduped      INTEGER NOT NULL
) STRICT;
CREATE INDEX posthouse_leased_key ON posthouse_leased (lane, key, pos) WHERE key IS NOT NULL;

-- Messages that ended without delivery, and those that an operator holds. blocks = 1 holds the later ones of the key.
CREATE TABLE posthouse_dead (
    seq          INTEGER PRIMARY KEY,
    state        TEXT NOT NULL CHECK (state IN ('dead', 'quarantined')),
    reason       TEXT CHECK (reason IN ('exhausted', 'rejected', 'lapsed', 'conflict', 'cancelled')),
    ended_at     INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    key          TEXT,
    pos          INTEGER NOT NULL,
    blocks       INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    deduped      INTEGER NOT NULL
) STRICT;
CREATE INDEX posthouse_dead_blocks ON posthouse_dead (lane, key, pos) WHERE blocks = 1;

-- Messages that an operator declared delivered: where they stood, because no attempt says it.
CREATE TABLE posthouse_resolved (
    seq          INTEGER PRIMARY KEY,
    ended_at     INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL
) STRICT;

-- The evidence: one for each lease that ended in an outcome. Never updated; gone only with its message.
CREATE TABLE posthouse_attempt (
    seq          INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    worker       TEXT NOT NULL,
    token        BLOB NOT NULL,
    outcome      TEXT NOT NULL,
    code         TEXT,
    error        TEXT,
    receipt      TEXT,
    started_at   INTEGER NOT NULL,
    finished_at  INTEGER NOT NULL,
    PRIMARY KEY (seq, epoch)
) STRICT, WITHOUT ROWID;

-- Who has a dedupe key. It outlives the message's body; ends_at is set when the message ends.
-- lifetime is NULL for a key that is never free again.
CREATE TABLE posthouse_dedupe (
    lane     INTEGER NOT NULL,
    topic    TEXT NOT NULL,
    key      TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    id       BLOB NOT NULL,
    digest   BLOB,
    lifetime INTEGER,
    ends_at  INTEGER,
    PRIMARY KEY (lane, topic, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX posthouse_dedupe_ends ON posthouse_dedupe (ends_at) WHERE ends_at IS NOT NULL;

-- Receipts that a delivery kept for later messages of the same effect (tenant, namespace, topic, content and destination, hashed).
-- As long as its message is there, so is its receipt.
CREATE TABLE posthouse_receipt (
    effect  BLOB NOT NULL,
    seq     INTEGER NOT NULL,
    receipt TEXT,
    PRIMARY KEY (effect, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX posthouse_receipt_seq ON posthouse_receipt (seq);

-- The verbs of operators, with their notes, and workers that found their lease lost. `pruned` holds the counts of a prune, as JSON.
CREATE TABLE posthouse_audit (
    n           INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    actor       TEXT NOT NULL,
    action      TEXT NOT NULL,
    id          BLOB,
    destination TEXT,
    note        TEXT NOT NULL,
    pruned      TEXT
) STRICT;
CREATE INDEX posthouse_audit_id ON posthouse_audit (id, n) WHERE id IS NOT NULL;
CREATE INDEX posthouse_audit_actor ON posthouse_audit (actor, n);
CREATE INDEX posthouse_audit_action ON posthouse_audit (action, n);

-- What relays told of themselves last, as JSON. It holds until then; a relay that leaves ends it at once.
CREATE TABLE posthouse_relay (
    name       TEXT PRIMARY KEY,
    told       TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    until      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Destinations that nobody sends to until an operator lets them go on.
CREATE TABLE posthouse_pause (
    destination TEXT PRIMARY KEY,
    at          INTEGER NOT NULL,
    actor       TEXT NOT NULL,
    note        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The ledger: one record for each tenant, scope and key, from the moment that somebody begins under it until its retention is over. In flight it is held until
-- lease_until; or, without that, by a message; or by nobody, when it was let go of.
CREATE TABLE posthouse_ledger (
    tenant      TEXT NOT NULL,
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('in_flight', 'succeeded', 'failed')),
    token       BLOB,
    lease_until INTEGER,
    message     BLOB,
    checkpoint  TEXT,
    http_status INTEGER,
    headers     TEXT,
    digest      BLOB,
    error       TEXT,
    retention   INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    result      BLOB,
    UNIQUE (tenant, scope, key)
) STRICT;
CREATE INDEX posthouse_ledger_expires ON posthouse_ledger (expires_at) WHERE expires_at IS NOT NULL;

-- What consumers have had.
CREATE TABLE posthouse_inbox (
    consumer TEXT NOT NULL,
    message  BLOB NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, message)
) STRICT, WITHOUT ROWID;
CREATE INDEX posthouse_inbox_at ON posthouse_inbox (at);

-- What sagas do: the definitions under which they were started, as JSON. Never changed.
CREATE TABLE posthouse_saga_definition (
    n         INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    hash      BLOB NOT NULL,
    body      TEXT NOT NULL,
    UNIQUE (namespace, name, version)
) STRICT;

-- Sagas: where they stand, as JSON, and a revision that rises with each change. definition is the number of theirs.
CREATE TABLE posthouse_saga (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          BLOB NOT NULL UNIQUE,
    namespace   TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    key         TEXT NOT NULL,
    definition  INTEGER NOT NULL,
    digest      BLOB NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('running', 'compensating', 'held', 'completed', 'compensated', 'abandoned')),
    reason      TEXT CHECK (
        reason IN ('unknown', 'retries_exhausted', 'rejected', 'compensation_failed', 'operator', 'no_handler', 'output')
    ),
    paused      INTEGER NOT NULL CHECK (paused IN (0, 1)),
    revision    INTEGER NOT NULL CHECK (revision > 0),
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    finished_at INTEGER,
    snapshot    TEXT NOT NULL,
    UNIQUE (namespace, tenant, name, key)
) STRICT;
CREATE INDEX posthouse_saga_finished ON posthouse_saga (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX posthouse_saga_state ON posthouse_saga (state, seq) WHERE finished_at IS NULL;

-- What happened to them, one line for each; never changed.
CREATE TABLE posthouse_saga_log (
    saga     INTEGER NOT NULL,
    n        INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    actor    TEXT NOT NULL,
    what     TEXT NOT NULL,
    step     TEXT,
    detail   TEXT NOT NULL,
    PRIMARY KEY (saga, n)
) STRICT, WITHOUT ROWID;

-- What participants know of steps of sagas, by the key under which those are done: that it came, or that it was undone.
CREATE TABLE posthouse_step (
    consumer TEXT NOT NULL,
    key      TEXT NOT NULL,
    undone   INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX posthouse_step_at ON posthouse_step (at);
