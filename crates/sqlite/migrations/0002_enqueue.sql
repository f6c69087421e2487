-- Enqueue, as one INSERT that every language can do, in the caller's own transaction:
--   INSERT INTO posthouse_enqueue (topic, payload) VALUES ('order.placed', '{"order": 42}');
-- Errors begin with 'posthouse: ', then a stable code, then the field. Nothing here is newer than SQLite 3.40.

-- The columns to give. Only topic and payload are needed. delay, deliver_in and dedupe_for are seconds.
CREATE VIEW posthouse_enqueue (
    topic, payload, content_type, tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in, id,
    on_duplicate, max_attempts, on_dead, dedupe_for, digest, kind, parent, destination
) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE 0;

-- The same with every default filled in and times in microseconds; what the first trigger hands to the second.
CREATE VIEW posthouse_incoming (
    topic, payload, content_type, tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in, id,
    on_duplicate, max_attempts, on_dead, dedupe_for, digest, kind, parent, destination, now
) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL
WHERE 0;

-- The same again, checked and measured. A program that checks messages itself (the Rust crate does) inserts here,
CREATE VIEW posthouse_accepted (
    topic, payload, content_type, tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in, id,
    max_attempts, on_dead, dedupe_for, digest, kind, parent, destination, bytes, now
) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL
WHERE 0;

-- or here, if the message is due at once and has neither an order key nor a dedupe key.
CREATE VIEW posthouse_plain (
    topic, payload, content_type, tenant, namespace, headers, deliver_in, id, max_attempts, on_dead, digest, kind,
    parent, destination, bytes, now
) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE 0;

-- First: defaults and forms. An id may come as 16 bytes or as text; without unhex() (3.41), text becomes bytes by
-- looking each pair of digits up in a string of all bytes. An absent id is a UUID version 7, by our clock to the microsecond:
-- the bytes 70 to 7F carry the version, 80 to BF the variant.
CREATE TRIGGER posthouse_enqueue_insert INSTEAD OF INSERT ON posthouse_enqueue
BEGIN
    SELECT CASE
        WHEN typeof(NEW.id) = 'text' AND (
            length(replace(NEW.id, '-', '')) <> 32 OR lower(replace(NEW.id, '-', '')) GLOB '*[^0-9a-f]*'
        ) THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: id: is not a UUID')
        WHEN typeof(NEW.id) NOT IN ('text', 'null') AND NOT (typeof(NEW.id) = 'blob' AND length(NEW.id) = 16)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: id: is not a UUID')
        WHEN typeof(NEW.payload) NOT IN ('text', 'blob')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: payload: must be text or a blob')
        WHEN typeof(NEW.payload) = 'text' AND coalesce(NEW.content_type, 'application/json') = 'application/json'
            AND NOT json_valid(NEW.payload)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: payload: is not JSON; give a content_type for other text')
        WHEN typeof(coalesce(NEW.delay, 0)) NOT IN ('integer', 'real')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: delay: must be a number of seconds')
        WHEN typeof(coalesce(NEW.deliver_in, 1)) NOT IN ('integer', 'real')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: deliver_in: must be a number of seconds')
        WHEN typeof(coalesce(NEW.dedupe_for, 1)) NOT IN ('integer', 'real')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: dedupe_for: must be a number of seconds, or negative for ever')
    END;
    INSERT INTO posthouse_incoming VALUES (
        NEW.topic,
        CAST(NEW.payload AS BLOB),
        coalesce(
            NEW.content_type,
            CASE typeof(NEW.payload) WHEN 'text' THEN 'application/json' ELSE 'application/octet-stream' END
        ),
        coalesce(NEW.tenant, ''),
        coalesce(NEW.namespace, 'default'),
        NEW.order_key,
        NEW.dedupe_key,
        nullif(NEW.headers, '{}'),
        CAST(round(coalesce(NEW.delay, 0) * 1000000.0) AS INTEGER),
        CAST(round(NEW.deliver_in * 1000000.0) AS INTEGER),
        (
            SELECT CASE typeof(NEW.id)
                WHEN 'blob' THEN NEW.id
                WHEN 'null' THEN CAST(
                    substr(bytes, 1 + ((us / 1000 >> 40) & 255), 1)
                    || substr(bytes, 1 + ((us / 1000 >> 32) & 255), 1)
                    || substr(bytes, 1 + ((us / 1000 >> 24) & 255), 1)
                    || substr(bytes, 1 + ((us / 1000 >> 16) & 255), 1)
                    || substr(bytes, 1 + ((us / 1000 >> 8) & 255), 1)
                    || substr(bytes, 1 + (us / 1000 & 255), 1)
                    || substr(bytes, 1 + 112 + (us % 1000 * 4096 / 1000 >> 8), 1)
                    || substr(bytes, 1 + (us % 1000 * 4096 / 1000 & 255), 1)
                    || substr(bytes, 1 + 128 + (random() & 63), 1)
                    || randomblob(7) AS BLOB
                )
                ELSE CAST(
                    substr(bytes, 16 * instr(digits, substr(h, 1, 1)) + instr(digits, substr(h, 2, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 3, 1)) + instr(digits, substr(h, 4, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 5, 1)) + instr(digits, substr(h, 6, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 7, 1)) + instr(digits, substr(h, 8, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 9, 1)) + instr(digits, substr(h, 10, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 11, 1)) + instr(digits, substr(h, 12, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 13, 1)) + instr(digits, substr(h, 14, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 15, 1)) + instr(digits, substr(h, 16, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 17, 1)) + instr(digits, substr(h, 18, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 19, 1)) + instr(digits, substr(h, 20, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 21, 1)) + instr(digits, substr(h, 22, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 23, 1)) + instr(digits, substr(h, 24, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 25, 1)) + instr(digits, substr(h, 26, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 27, 1)) + instr(digits, substr(h, 28, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 29, 1)) + instr(digits, substr(h, 30, 1)) - 16, 1)
                    || substr(bytes, 16 * instr(digits, substr(h, 31, 1)) + instr(digits, substr(h, 32, 1)) - 16, 1) AS BLOB
                )
            END
            FROM (
                SELECT
                    (SELECT now FROM posthouse_clock) AS us,
                    lower(replace(NEW.id, '-', '')) AS h,
                    '0123456789abcdef' AS digits,
                    X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F404142434445464748494A4B4C4D4E4F505152535455565758595A5B5C5D5E5F606162636465666768696A6B6C6D6E6F707172737475767778797A7B7C7D7E7F808182838485868788898A8B8C8D8E8F909192939495969798999A9B9C9D9E9FA0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBFC0C1C2C3C4C5C6C7C8C9CACBCCCDCECFD0D1D2D3D4D5D6D7D8D9DADBDCDDDEDFE0E1E2E3E4E5E6E7E8E9EAEBECEDEEEFF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF' AS bytes
            )
        ),
        coalesce(NEW.on_duplicate, 'refuse'),
        coalesce(NEW.max_attempts, (SELECT max_attempts FROM posthouse_settings), 12),
        coalesce(NEW.on_dead, 'pass'),
        CASE
            WHEN NEW.dedupe_for IS NULL THEN nullif(coalesce((SELECT dedupe_for FROM posthouse_settings), 604800000000), -1)
            WHEN NEW.dedupe_for >= 0 THEN CAST(round(NEW.dedupe_for * 1000000.0) AS INTEGER)
        END,
        NEW.digest,
        coalesce(NEW.kind, 'message'),
        NEW.parent,
        NEW.destination,
        (SELECT now FROM posthouse_clock)
    );
END;

-- Second: refuse what no store may accept, and what contradicts what is there.
CREATE TRIGGER posthouse_incoming_check INSTEAD OF INSERT ON posthouse_incoming
BEGIN
    SELECT CASE
        WHEN typeof(NEW.topic) <> 'text' OR length(CAST(NEW.topic AS BLOB)) NOT BETWEEN 1 AND 2048 OR (
            length(CAST(NEW.topic AS BLOB)) > 255
            AND NOT (NEW.topic GLOB 'http:*' OR NEW.topic GLOB 'bus:*' OR NEW.topic GLOB 'fn:*' OR NEW.topic GLOB 'custom:*')
        ) THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: topic: must be text of 1 to 255 bytes (2048 for a destination)')
        WHEN NEW.topic IN ('http:', 'bus:', 'fn:', 'custom:')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: topic: names no destination')
        WHEN NEW.topic GLOB 'http:*//*@*' AND (
            SELECT instr(substr(target, 1, instr(target, '/')), '@')
            FROM (
                SELECT replace(replace(substr(NEW.topic, instr(NEW.topic, '//') + 2), '?', '/'), '#', '/') || '/' AS target
            )
        ) > 0 THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: topic: holds a user name or password in its URL')
        WHEN (typeof(NEW.namespace) <> 'text' OR length(CAST(NEW.namespace AS BLOB)) NOT BETWEEN 1 AND 255)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: namespace: must be text of 1 to 255 bytes')
        WHEN typeof(NEW.tenant) <> 'text' OR length(CAST(NEW.tenant AS BLOB)) > 255
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: tenant: must be text of at most 255 bytes')
        WHEN NEW.tenant = '' AND (SELECT require_tenant FROM posthouse_settings) = 1
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: tenant: is empty, and this store requires one')
        WHEN NEW.order_key IS NOT NULL AND (typeof(NEW.order_key) <> 'text' OR length(CAST(NEW.order_key AS BLOB)) NOT BETWEEN 1 AND 255)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: order_key: must be text of 1 to 255 bytes')
        WHEN NEW.dedupe_key IS NOT NULL AND (typeof(NEW.dedupe_key) <> 'text' OR length(CAST(NEW.dedupe_key AS BLOB)) NOT BETWEEN 1 AND 255)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: dedupe_key: must be text of 1 to 255 bytes')
        WHEN (typeof(NEW.content_type) <> 'text' OR length(CAST(NEW.content_type AS BLOB)) NOT BETWEEN 1 AND 255)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: content_type: must be text of 1 to 255 bytes')
        WHEN length(NEW.payload) > 16777216
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: payload: has more than 16 MiB; keep large objects elsewhere and send a reference')
        WHEN length(NEW.payload) > (SELECT payload_bytes FROM posthouse_settings)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: payload: is larger than this store allows (payload_bytes of posthouse_settings); keep large objects elsewhere and send a reference')
        WHEN NEW.delay NOT BETWEEN 0 AND 316224000000000
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: delay: must be between zero and ten years')
        WHEN NEW.deliver_in NOT BETWEEN 1 AND 316224000000000
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: deliver_in: must be more than zero and at most ten years')
        WHEN NEW.deliver_in <= NEW.delay
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: deliver_in: ends before the delay does, so it could never be sent')
        WHEN typeof(NEW.max_attempts) <> 'integer' OR NEW.max_attempts NOT BETWEEN 1 AND 1000
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: max_attempts: must be between 1 and 1000')
        WHEN NEW.on_dead NOT IN ('pass', 'block')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: on_dead: must be pass or block')
        WHEN NEW.on_duplicate NOT IN ('refuse', 'keep')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: on_duplicate: must be refuse or keep')
        WHEN NEW.kind <> 'message'
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: kind: is not for the producer to set; leave it out')
        WHEN NEW.parent IS NOT NULL
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: parent: is not for the producer to set; leave it out')
        WHEN NEW.destination IS NOT NULL
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: destination: is not for the producer to set; leave it out')
        WHEN NEW.digest IS NOT NULL AND NOT (typeof(NEW.digest) = 'blob' AND length(NEW.digest) = 32)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: digest: must be a blob of 32 bytes')
        WHEN NEW.headers IS NULL THEN NULL
        WHEN typeof(NEW.headers) <> 'text' OR NOT json_valid(NEW.headers)
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: headers: must be a JSON object of text')
        WHEN json_type(NEW.headers) <> 'object' OR EXISTS (SELECT 1 FROM json_each(NEW.headers) WHERE type <> 'text')
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: headers: must be a JSON object of text')
        WHEN (SELECT count(*) FROM json_each(NEW.headers)) > 64
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: headers: at most 64 are allowed')
        WHEN EXISTS (
            SELECT 1
            FROM json_each(NEW.headers)
            WHERE length(CAST(key AS BLOB)) NOT BETWEEN 1 AND 255
                OR key GLOB '*[^-a-zA-Z0-9!#$%&''*+.^_`|~]*'
                OR lower(key) IN ('content-type', 'content-length', 'host', 'authorization', 'idempotency-key')
                OR lower(key) GLOB 'posthouse-*'
                OR lower(key) GLOB 'webhook-*'
        ) THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: headers: a name is not a header name, or is reserved for the relay')
        WHEN EXISTS (
            SELECT 1
            FROM json_each(NEW.headers)
            WHERE length(CAST(value AS BLOB)) > 4096
                OR value GLOB '*[' || char(1) || '-' || char(8) || char(10) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
                OR instr(CAST(value AS BLOB), X'00') > 0
        ) THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: headers: a value is longer than 4096 bytes or holds a control character')
    END;
    -- Control characters: one look at all names together, and only then which one it was.
    SELECT CASE
        WHEN NEW.topic GLOB control OR instr(CAST(NEW.topic AS BLOB), X'00') > 0
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: topic: holds a control character')
        WHEN NEW.namespace GLOB control OR instr(CAST(NEW.namespace AS BLOB), X'00') > 0
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: namespace: holds a control character')
        WHEN NEW.tenant GLOB control OR instr(CAST(NEW.tenant AS BLOB), X'00') > 0
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: tenant: holds a control character')
        WHEN NEW.content_type GLOB control OR instr(CAST(NEW.content_type AS BLOB), X'00') > 0
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: content_type: holds a control character')
        WHEN NEW.order_key GLOB control OR instr(CAST(NEW.order_key AS BLOB), X'00') > 0
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: order_key: holds a control character')
        WHEN NEW.dedupe_key GLOB control OR instr(CAST(NEW.dedupe_key AS BLOB), X'00') > 0
            THEN RAISE(ABORT, 'posthouse: SCHEMA.VALIDATION_FAILED: dedupe_key: holds a control character')
    END
    FROM (
        SELECT
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*' AS control,
            NEW.topic || NEW.namespace || NEW.tenant || NEW.content_type || coalesce(NEW.order_key, '')
            || coalesce(NEW.dedupe_key, '') AS names
    )
    WHERE names GLOB control OR instr(CAST(names AS BLOB), X'00') > 0;

    -- A repetition is refused when its content is other. Bytes are compared, because other languages bring no digest;
    -- once the body is pruned only digests are left, and where one is missing the key decides.
    SELECT RAISE(ABORT, 'posthouse: STORAGE.CONFLICT: id: is already used by a message that has other content')
    FROM posthouse_message
    WHERE NEW.on_duplicate = 'refuse'
        AND id = NEW.id
        AND NOT (content_type = NEW.content_type AND payload = NEW.payload);
    SELECT RAISE(ABORT, 'posthouse: STORAGE.CONFLICT: dedupe_key: is already used by a message that has other content')
    FROM posthouse_lane AS l
    JOIN posthouse_dedupe AS d ON d.lane = l.lane AND d.topic = NEW.topic AND d.key = NEW.dedupe_key
    LEFT JOIN posthouse_message AS m ON m.seq = d.seq
    WHERE NEW.on_duplicate = 'refuse'
        AND l.namespace = NEW.namespace
        AND l.tenant = NEW.tenant
        AND (d.ends_at IS NULL OR d.ends_at > NEW.now)
        AND CASE
            WHEN m.seq IS NULL THEN d.digest <> NEW.digest
            ELSE NOT (m.content_type = NEW.content_type AND m.payload = NEW.payload)
        END
        AND NOT EXISTS (SELECT 1 FROM posthouse_message WHERE id = NEW.id);

    INSERT INTO posthouse_accepted VALUES (
        NEW.topic, NEW.payload, NEW.content_type, NEW.tenant, NEW.namespace, NEW.order_key, NEW.dedupe_key, NEW.headers,
        NEW.delay, NEW.deliver_in, NEW.id, NEW.max_attempts, NEW.on_dead, NEW.dedupe_for, NEW.digest, NEW.kind,
        NEW.parent, NEW.destination, length(NEW.payload), NEW.now
    );
END;

-- Third: a message that is new is written and takes its place; one that is not writes nothing.
-- No error is raised here and no function is called: either would make SQLite keep a journal of every page that the
-- statement touches. Two kinds, because each trigger costs as much memory as it has columns and indexes to open, also when
-- its condition is false: the plain message pays for nothing else.
CREATE TRIGGER posthouse_plain_insert INSTEAD OF INSERT ON posthouse_plain
WHEN NOT EXISTS (SELECT 1 FROM posthouse_message WHERE id = NEW.id)
BEGIN
    INSERT INTO posthouse_lane (namespace, tenant)
    VALUES (NEW.namespace, NEW.tenant)
    ON CONFLICT (namespace, tenant) DO NOTHING;
    INSERT INTO posthouse_message (
        id, lane, topic, content_type, headers, kind, parent, destination, on_dead, max_attempts, digest, created_at,
        due_at, deliver_by, bytes, payload
    )
    VALUES (
        NEW.id, (SELECT lane FROM posthouse_lane WHERE namespace = NEW.namespace AND tenant = NEW.tenant), NEW.topic,
        NEW.content_type, NEW.headers, NEW.kind, NEW.parent, NEW.destination, NEW.on_dead, NEW.max_attempts, NEW.digest,
        NEW.now, NEW.now, NEW.now + NEW.deliver_in, NEW.bytes, NEW.payload
    );
    INSERT INTO posthouse_ready (
        lane, pos, seq, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped
    )
    -- A step of a saga does not lapse in the store: a claim grants it, and its saga decides.
    SELECT lane, seq, seq, bytes, 0, max_attempts, 0, 1, 0, CASE WHEN kind <> 'step' THEN deliver_by END, 0
    FROM posthouse_message
    WHERE id = NEW.id;
END;

CREATE TRIGGER posthouse_accepted_plain INSTEAD OF INSERT ON posthouse_accepted
WHEN NEW.order_key IS NULL AND NEW.dedupe_key IS NULL AND NEW.delay <= 0
BEGIN
    INSERT INTO posthouse_plain VALUES (
        NEW.topic, NEW.payload, NEW.content_type, NEW.tenant, NEW.namespace, NEW.headers, NEW.deliver_in, NEW.id,
        NEW.max_attempts, NEW.on_dead, NEW.digest, NEW.kind, NEW.parent, NEW.destination, NEW.bytes, NEW.now
    );
END;

CREATE TRIGGER posthouse_accepted_other INSTEAD OF INSERT ON posthouse_accepted
WHEN (NEW.order_key IS NOT NULL OR NEW.dedupe_key IS NOT NULL OR NEW.delay > 0)
    AND NOT EXISTS (SELECT 1 FROM posthouse_message WHERE id = NEW.id)
    AND NOT EXISTS (
        SELECT 1
        FROM posthouse_lane AS l
        JOIN posthouse_dedupe AS d ON d.lane = l.lane AND d.topic = NEW.topic AND d.key = NEW.dedupe_key
        WHERE l.namespace = NEW.namespace AND l.tenant = NEW.tenant AND (d.ends_at IS NULL OR d.ends_at > NEW.now)
    )
BEGIN
    INSERT INTO posthouse_lane (namespace, tenant)
    VALUES (NEW.namespace, NEW.tenant)
    ON CONFLICT (namespace, tenant) DO NOTHING;
    INSERT INTO posthouse_message (
        id, lane, topic, order_key, dedupe_key, content_type, headers, kind, parent, destination, on_dead, max_attempts,
        digest, dedupe_for, created_at, due_at, deliver_by, bytes, payload
    )
    VALUES (
        NEW.id, (SELECT lane FROM posthouse_lane WHERE namespace = NEW.namespace AND tenant = NEW.tenant), NEW.topic,
        NEW.order_key, NEW.dedupe_key, NEW.content_type, NEW.headers, NEW.kind, NEW.parent, NEW.destination,
        NEW.on_dead, NEW.max_attempts, NEW.digest, CASE WHEN NEW.dedupe_key IS NOT NULL THEN NEW.dedupe_for END,
        NEW.now, NEW.now + NEW.delay, NEW.now + NEW.deliver_in, NEW.bytes, NEW.payload
    );

    -- A dedupe key whose lifetime is over is free.
    DELETE FROM posthouse_dedupe
    WHERE lane = (SELECT lane FROM posthouse_lane WHERE namespace = NEW.namespace AND tenant = NEW.tenant)
        AND topic = NEW.topic
        AND key = NEW.dedupe_key;
    INSERT INTO posthouse_dedupe (lane, topic, key, seq, id, digest, lifetime)
    SELECT lane, topic, dedupe_key, seq, id, digest, dedupe_for
    FROM posthouse_message
    WHERE id = NEW.id AND dedupe_key IS NOT NULL;

    INSERT INTO posthouse_ready (
        lane, pos, seq, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped
    )
    SELECT
        lane, seq, seq, bytes, 0, max_attempts, 0, 1, 0, CASE WHEN kind <> 'step' THEN deliver_by END,
        dedupe_key IS NOT NULL
    FROM posthouse_message
    WHERE id = NEW.id AND order_key IS NULL AND due_at <= created_at;

    INSERT INTO posthouse_sched (
        seq, lane, wake_at, due_at, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped
    )
    SELECT
        seq, lane, due_at, due_at, bytes, 0, max_attempts, 0, 1, 0, CASE WHEN kind <> 'step' THEN deliver_by END,
        dedupe_key IS NOT NULL
    FROM posthouse_message
    WHERE id = NEW.id AND order_key IS NULL AND due_at > created_at;

    -- It is the head of its key when nothing of the key is pending, leased, or dead and blocking.
    INSERT INTO posthouse_keyed (
        lane, key, pos, seq, free, wake_at, due_at, bytes, attempts, max_attempts, epoch, generation, releases,
        deliver_by, deduped
    )
    SELECT
        lane, order_key, seq, seq,
        CASE WHEN head AND due_at <= created_at THEN 1 END,
        CASE WHEN head AND due_at > created_at THEN due_at END,
        due_at, bytes, 0, max_attempts, 0, 1, 0, deliver_by, dedupe_key IS NOT NULL
    FROM (
        SELECT
            m.lane, m.order_key, m.seq, m.due_at, m.created_at, m.bytes, m.max_attempts, m.deliver_by, m.dedupe_key,
            NOT EXISTS (SELECT 1 FROM posthouse_keyed AS k WHERE k.lane = m.lane AND k.key = m.order_key)
            AND NOT EXISTS (SELECT 1 FROM posthouse_leased AS h WHERE h.lane = m.lane AND h.key = m.order_key)
            AND NOT EXISTS (
                SELECT 1 FROM posthouse_dead AS d WHERE d.lane = m.lane AND d.key = m.order_key AND d.blocks = 1
            ) AS head
        FROM posthouse_message AS m
        WHERE m.id = NEW.id AND m.order_key IS NOT NULL
    );
END;
