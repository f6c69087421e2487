-- The tables. A message's state is the table its live record is in:
--   pending = ready, sched, parked or keyed    leased = leased or lot    dead, quarantined = dead    done = none of them.
-- One sequence orders everything: message.seq, and `pos`, a place in the line. A record gets a fresh place whenever it
-- goes back into `ready`; in `keyed` it keeps its place, because there the place is the order of the key.

CREATE TABLE posthouse.message (
    -- CACHE must stay 1: the safe floor of the claims (sample_floor) relies on it.
    seq          bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    id           uuid NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL,
    deliver_by   timestamptz,
    parent       uuid,
    kind         smallint NOT NULL DEFAULT 0 CHECK (kind BETWEEN 0 AND 4),
    tenant       text NOT NULL CHECK (octet_length(tenant) <= 255),
    namespace    text NOT NULL CHECK (octet_length(namespace) BETWEEN 1 AND 255),
    topic        text NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 2048),
    order_key    text CHECK (octet_length(order_key) BETWEEN 1 AND 255),
    dedupe_key   text CHECK (octet_length(dedupe_key) BETWEEN 1 AND 255),
    destination  text CHECK (octet_length(destination) BETWEEN 1 AND 2048),
    content_type text NOT NULL CHECK (octet_length(content_type) BETWEEN 1 AND 255),
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    headers      jsonb CHECK (jsonb_typeof(headers) = 'object' AND NOT headers @? '$.* ? (@.type() <> "string")'),
    payload      bytea NOT NULL CHECK (octet_length(payload) <= 16777216),
    -- A child has its message as parent, a message of a saga its saga.
    CHECK (kind = 0 OR parent IS NOT NULL)
)
-- A message is written once and looked for by its summaries below, which vacuum makes; it is cheap where nothing was deleted.
WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
-- What each half megabyte of messages may hold, in a few hundred bytes, so that operators find what is rare among millions without an
-- index that every enqueue would have to write: a new page has no summary yet.
CREATE INDEX message_rare ON posthouse.message USING brin (
    seq, tenant text_bloom_ops (n_distinct_per_range = 128), topic text_bloom_ops (n_distinct_per_range = 64)) WITH (pages_per_range = 64);

-- Free and due, without an order key. One index: lane (namespace and tenant, hashed) and place give first-come order,
-- fairness between tenants, the tenant filter and the floor.
CREATE TABLE posthouse.ready (
    lane         bigint NOT NULL,
    pos          bigint NOT NULL,
    seq          bigint NOT NULL,
    due_at       timestamptz NOT NULL,
    deliver_by   timestamptz,
    released     uuid,
    epoch        int NOT NULL DEFAULT 0,
    attempts     int NOT NULL DEFAULT 0,
    generation   int NOT NULL DEFAULT 1,
    bytes        int NOT NULL,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    releases     smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, pos)
);
-- A record is found by (lane, seq) until it moves to a fresh place; only those that moved pay for this index.
CREATE INDEX ready_moved ON posthouse.ready (seq) WHERE pos <> seq;

-- Not due yet, without an order key.
CREATE TABLE posthouse.sched (
    seq          bigint PRIMARY KEY,
    due_at       timestamptz NOT NULL,
    lane         bigint NOT NULL,
    deliver_by   timestamptz,
    released     uuid,
    epoch        int NOT NULL DEFAULT 0,
    attempts     int NOT NULL DEFAULT 0,
    generation   int NOT NULL DEFAULT 1,
    bytes        int NOT NULL,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    releases     smallint NOT NULL DEFAULT 0
);
-- A message comes back into the line when it is due, or to be given up, whichever is first. By lane too, so that one tenant's
-- flood stands before nobody else's, and by namespace, so that a relay of some namespaces finds what is there.
CREATE INDEX sched_due ON posthouse.sched ((least(due_at, deliver_by)));
CREATE INDEX sched_lane ON posthouse.sched (lane, (least(due_at, deliver_by)));
CREATE INDEX sched_space ON posthouse.sched ((lane >> 32), (least(due_at, deliver_by)));

-- Due, but of a topic that the last claimer could not send: out of the way until a claim comes that can.
CREATE TABLE posthouse.parked (
    seq          bigint PRIMARY KEY,
    topic        text NOT NULL,
    due_at       timestamptz NOT NULL,
    lane         bigint NOT NULL,
    deliver_by   timestamptz,
    released     uuid,
    epoch        int NOT NULL,
    attempts     int NOT NULL,
    generation   int NOT NULL,
    bytes        int NOT NULL,
    max_attempts smallint NOT NULL,
    releases     smallint NOT NULL
);
CREATE INDEX parked_topic ON posthouse.parked (lane, topic, seq);

-- With an order key: due or not, so that a backed-off or delayed head still holds its key. `key_hash` lets a claim start
-- at a random key. A dead or quarantined message that blocks its key stays here, due at infinity.
--
-- `wait` keeps keys that cannot be claimed out of the claims' way. 0: its key is visited by claims. 1: it waits for its time.
-- 2: it is behind one of its key that waits. 3: its topic is left, which `topic` names then. At least one record of a key that
-- could be claimed is 0, and the first of a key is never 2. Claims find out lazily, and every change but an insert is made
-- under the key's lock.
--
-- `line` is a fresh number of the one sequence whenever a record comes to be visited: at first its own place, later another one. So claims
-- know a number below which nothing is visited (`sample_floor`), and need not walk over all that was there once and that somebody's old
-- snapshot keeps from being cleaned up. A record with another line than its place may stand below it.
CREATE TABLE posthouse.keyed (
    lane         bigint NOT NULL,
    pos          bigint NOT NULL,
    seq          bigint NOT NULL,
    line         bigint NOT NULL,
    due_at       timestamptz NOT NULL,
    deliver_by   timestamptz,
    released     uuid,
    key_hash     bigint NOT NULL,
    epoch        int NOT NULL DEFAULT 0,
    attempts     int NOT NULL DEFAULT 0,
    generation   int NOT NULL DEFAULT 1,
    bytes        int NOT NULL,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    releases     smallint NOT NULL DEFAULT 0,
    wait         smallint NOT NULL DEFAULT 0,
    blocks       boolean NOT NULL DEFAULT false,
    key          text NOT NULL,
    topic        text,
    PRIMARY KEY (lane, key_hash, key, pos)
);
CREATE INDEX keyed_walk ON posthouse.keyed (lane, key_hash, key, pos, line) WHERE wait = 0;
CREATE INDEX keyed_line ON posthouse.keyed (line) WHERE wait = 0;
-- ~key_hash, so that the planner takes no other index for it: those hold all that was ever there.
CREATE INDEX keyed_low ON posthouse.keyed (lane, (~key_hash), key, pos) WHERE wait <> 0 OR line <> pos;
CREATE INDEX keyed_due ON posthouse.keyed ((least(due_at, deliver_by))) WHERE wait = 1;
CREATE INDEX keyed_lane ON posthouse.keyed (lane, (least(due_at, deliver_by))) WHERE wait = 1;
CREATE INDEX keyed_space ON posthouse.keyed ((lane >> 32), (least(due_at, deliver_by))) WHERE wait = 1;
CREATE INDEX keyed_topic ON posthouse.keyed (lane, topic, seq) WHERE wait = 3;
CREATE INDEX keyed_moved ON posthouse.keyed (seq) WHERE pos <> seq;

-- In flight. `pos`, `line`, `key_hash` and `key` are set for keyed messages only.
CREATE TABLE posthouse.leased (
    seq          bigint PRIMARY KEY,
    token        uuid NOT NULL,
    until        timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    lane         bigint NOT NULL,
    deliver_by   timestamptz,
    pos          bigint,
    line         bigint,
    epoch        int NOT NULL,
    attempts     int NOT NULL,
    generation   int NOT NULL,
    bytes        int NOT NULL,
    key_hash     bigint,
    max_attempts smallint NOT NULL,
    releases     smallint NOT NULL,
    blocks       boolean NOT NULL DEFAULT false,
    worker       text NOT NULL,
    key          text
) WITH (fillfactor = 70);
CREATE INDEX leased_key ON posthouse.leased (lane, key_hash, key, pos) WHERE key IS NOT NULL;
CREATE INDEX leased_low ON posthouse.leased (lane, (~key_hash), key, pos) WHERE key IS NOT NULL AND line <> pos;

-- In flight together, in one record: messages that one claim was granted for the first time, of one lane and one budget, without a key
-- and without a deliver-by. What happens to one of them alone gives it a record of its own in `leased` first (open_lots).
CREATE TABLE posthouse.lot (
    token        uuid NOT NULL,
    n            int NOT NULL,
    until        timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    lane         bigint NOT NULL,
    -- As in `deadline`.
    half         bigint,
    max_attempts smallint NOT NULL,
    worker       text NOT NULL,
    -- From the first to the last that it had at the grant: what is looked up by number is found by this, which no settlement changes.
    span         int8range NOT NULL,
    seqs         int8multirange NOT NULL,
    PRIMARY KEY (token, n)
) WITH (fillfactor = 50);
CREATE INDEX lot_until ON posthouse.lot (until);
CREATE INDEX lot_span ON posthouse.lot USING gist (span);

-- When to look for expired leases: one record for each claim. A hint: the truth is leased.until, which a renewal moves
-- without touching this. An index on leased.until would cost every message; this costs eight bytes.
CREATE TABLE posthouse.deadline (
    until timestamptz NOT NULL,
    token uuid NOT NULL,
    -- The lower half of the lanes, when the claim was for one tenant: it may be tidied up by that tenant's workers alone.
    half  bigint,
    seqs  bigint[] NOT NULL
) WITH (toast_tuple_target = 8160);
-- Not compressed, and in its place where it fits: it is read once at most, and compressing it would cost each message.
ALTER TABLE posthouse.deadline ALTER COLUMN seqs SET STORAGE EXTERNAL;
-- It has no key, and somebody may replicate all tables.
ALTER TABLE posthouse.deadline REPLICA IDENTITY FULL;
CREATE INDEX deadline_until ON posthouse.deadline (until);
CREATE INDEX deadline_half ON posthouse.deadline (half, until);

-- The evidence: one record for each counted lease, never updated.
CREATE TABLE posthouse.attempt (
    seq         bigint NOT NULL,
    started_at  timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    token       uuid NOT NULL,
    epoch       int NOT NULL,
    generation  int NOT NULL,
    attempt     int NOT NULL,
    outcome     smallint NOT NULL,
    max_attempts smallint NOT NULL,
    worker      text NOT NULL,
    code        text,
    error       text,
    receipt     text,
    PRIMARY KEY (seq, epoch)
);

-- Ended without delivery, or held by an operator (reason 0).
CREATE TABLE posthouse.dead (
    seq          bigint PRIMARY KEY,
    at           timestamptz NOT NULL,
    epoch        int NOT NULL,
    attempts     int NOT NULL,
    generation   int NOT NULL,
    max_attempts smallint NOT NULL,
    reason       smallint NOT NULL,
    -- What its death does to its key, and whether it does it now.
    on_dead      boolean NOT NULL,
    blocking     boolean NOT NULL,
    note         text
);

-- Declared delivered by an operator: where they stood, because no attempt says it.
CREATE TABLE posthouse.resolved (
    seq          bigint PRIMARY KEY,
    at           timestamptz NOT NULL,
    epoch        int NOT NULL,
    attempts     int NOT NULL,
    generation   int NOT NULL,
    max_attempts smallint NOT NULL
);

-- Dedupe keys outlive the bodies. `ended_at` is set when the body is pruned.
CREATE TABLE posthouse.dedupe (
    key_hash bytea PRIMARY KEY,
    id       uuid NOT NULL,
    ended_at timestamptz,
    digest   bytea NOT NULL
);
CREATE INDEX dedupe_id ON posthouse.dedupe (id);
CREATE INDEX dedupe_ended ON posthouse.dedupe (ended_at) WHERE ended_at IS NOT NULL;

-- Receipts that a delivery kept for later messages of the same effect (tenant, namespace, topic, content and destination, hashed). By
-- number too, so that deliveries of twins wait for nobody. As long as its message is there, so is its receipt.
CREATE TABLE posthouse.receipt (
    effect  bytea NOT NULL CHECK (octet_length(effect) = 32),
    seq     bigint NOT NULL,
    receipt text,
    PRIMARY KEY (effect, seq)
);
CREATE INDEX receipt_seq ON posthouse.receipt (seq);

-- The verbs of operators, with their notes, the counts of prunes, and workers that found their lease lost.
CREATE TABLE posthouse.audit (
    n          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    message_id uuid,
    -- Or the destination that it is about.
    destination text,
    actor      text NOT NULL,
    action     text NOT NULL,
    note       text NOT NULL,
    -- Of a prune: states, cutoff, and how many of each kind it removed.
    pruned     jsonb
);
CREATE INDEX audit_message ON posthouse.audit (message_id);

-- Workers that wait for a ring, by the bell they listen to: a name alone may be that of several. Unlogged: after a crash nobody
-- sleeps.
CREATE UNLOGGED TABLE posthouse.sleeper (
    bell   uuid NOT NULL,
    worker text NOT NULL,
    until  timestamptz NOT NULL,
    PRIMARY KEY (bell, worker)
);

-- What relays tell of themselves, and until when it holds.
CREATE TABLE posthouse.relay (
    name       text PRIMARY KEY,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    info       jsonb NOT NULL
);

-- Destinations that operators have stopped.
CREATE TABLE posthouse.pause (
    destination text PRIMARY KEY,
    at          timestamptz NOT NULL,
    actor       text NOT NULL,
    note        text NOT NULL
);

-- The number from which the next round of retention goes on, of messages that are done and of dead letters. A hint: at the end it starts
-- again from the beginning. One record.
CREATE TABLE posthouse.retention (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    next bigint NOT NULL,
    next_dead bigint NOT NULL
);
INSERT INTO posthouse.retention (next, next_dead) VALUES (0, 0);

-- What plain SQL producers and workers are held to. One record.
CREATE TABLE posthouse.settings (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    max_attempts    int NOT NULL DEFAULT 12 CHECK (max_attempts BETWEEN 1 AND 1000),
    payload_bytes   int NOT NULL DEFAULT 262144 CHECK (payload_bytes BETWEEN 0 AND 16777216),
    require_tenant  boolean NOT NULL DEFAULT false,
    dedupe_lifetime interval DEFAULT '7 days',
    backoff_base    interval NOT NULL DEFAULT '500 milliseconds',
    backoff_factor  double precision NOT NULL DEFAULT 2,
    backoff_cap     interval NOT NULL DEFAULT '300 seconds',
    backoff_jitter  double precision NOT NULL DEFAULT 0.3,
    backoff_floor   interval NOT NULL DEFAULT '1 millisecond',
    longest_wish    interval NOT NULL DEFAULT '1 hour',
    -- Numbers between which messages may be older than their neighbours, because their past was imported.
    imported_from   bigint,
    imported_to     bigint
);
INSERT INTO posthouse.settings DEFAULT VALUES;

-- What hides keys from viewers. One record, for the owner's eyes alone.
CREATE TABLE posthouse.secret (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    salt bytea NOT NULL
);
INSERT INTO posthouse.secret (salt) VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

-- What a claim answers. A type, because a function's argument and its column cannot both be called tenant.
CREATE TYPE posthouse.claimed AS (
    id uuid, lease_token uuid, epoch bigint, attempt int, tenant text, namespace text, topic text, order_key text,
    content_type text, payload bytea, headers jsonb, generation int, max_attempts int, deliver_in interval, parent uuid);

-- The ledger: one record for each tenant, scope and key, from the moment that somebody begins under it until its retention is over.
-- status: 0 in flight, 1 succeeded, 2 failed. In flight it is held until lease_until; or, without that, by a message; or by nobody, when it was let go of.
CREATE TABLE posthouse.ledger (
    tenant        text COLLATE "C" NOT NULL,
    scope         text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    fingerprint   bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    status        smallint NOT NULL CHECK (status BETWEEN 0 AND 2),
    token         uuid,
    lease_until   timestamptz,
    message       uuid,
    checkpoint    text,
    http_status   int CHECK (http_status BETWEEN 100 AND 999),
    headers       jsonb CHECK (jsonb_typeof(headers) = 'object'),
    result        bytea,
    result_digest bytea CHECK (octet_length(result_digest) = 32),
    error         text,
    retention     interval NOT NULL,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    expires_at    timestamptz,
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX ledger_expires ON posthouse.ledger (expires_at) WHERE expires_at IS NOT NULL;

-- What consumers have had.
CREATE TABLE posthouse.inbox (
    consumer text NOT NULL,
    message  uuid NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (consumer, message)
);
CREATE INDEX inbox_at ON posthouse.inbox (at);

-- What sagas do: the definitions under which they were started, as JSON. Never changed.
CREATE TABLE posthouse.saga_definition (
    n         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL COLLATE "C",
    name      text NOT NULL COLLATE "C",
    version   int NOT NULL,
    hash      bytea NOT NULL CHECK (octet_length(hash) = 32),
    body      text NOT NULL,
    UNIQUE (namespace, name, version)
);

-- Sagas: where they stand, as JSON, and a revision that rises with each change. The JSON is text, because it may hold what jsonb does not take (\u0000).
CREATE TABLE posthouse.saga (
    seq         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          uuid NOT NULL UNIQUE,
    revision    bigint NOT NULL CHECK (revision > 0),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    finished_at timestamptz,
    definition  bigint NOT NULL,
    -- Lines of its log so far.
    lines       int NOT NULL CHECK (lines >= 0),
    paused      boolean NOT NULL,
    state       text NOT NULL CHECK (state IN ('running', 'compensating', 'held', 'completed', 'compensated', 'abandoned')),
    reason      text CHECK (reason IN ('unknown', 'retries_exhausted', 'rejected', 'compensation_failed', 'operator', 'no_handler', 'output')),
    namespace   text NOT NULL COLLATE "C" CHECK (octet_length(namespace) BETWEEN 1 AND 255),
    tenant      text NOT NULL COLLATE "C" CHECK (octet_length(tenant) <= 255),
    name        text NOT NULL COLLATE "C" CHECK (octet_length(name) BETWEEN 1 AND 255),
    key         text NOT NULL COLLATE "C" CHECK (octet_length(key) BETWEEN 1 AND 255),
    digest      bytea NOT NULL CHECK (octet_length(digest) = 32),
    -- Messages that are under way for it.
    carriers    uuid[] NOT NULL,
    snapshot    text NOT NULL,
    UNIQUE (namespace, tenant, name, key)
) WITH (fillfactor = 70);
CREATE INDEX saga_finished ON posthouse.saga (finished_at) WHERE finished_at IS NOT NULL;
-- Those that wait for a person are few among many.
CREATE INDEX saga_held ON posthouse.saga (seq) WHERE state = 'held';

-- What happened to them, one line for each; never changed.
CREATE TABLE posthouse.saga_log (
    saga     bigint NOT NULL,
    n        int NOT NULL,
    at       timestamptz NOT NULL,
    revision bigint NOT NULL,
    actor    text NOT NULL,
    what     text NOT NULL,
    step     text,
    detail   text NOT NULL,
    PRIMARY KEY (saga, n)
);

-- What participants know of steps of sagas, by the key under which those are done: that it came, or that it was undone.
CREATE TABLE posthouse.step (
    consumer text NOT NULL COLLATE "C",
    key      text NOT NULL COLLATE "C",
    undone   boolean NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (consumer, key)
);
CREATE INDEX step_at ON posthouse.step (at);
