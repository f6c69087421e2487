-- Where every message stands, for operators and for anybody who reads with plain SQL.
-- A ready or keyed message that was never moved is found by pos = seq, the others by the partial index on seq.
CREATE VIEW posthouse_messages AS
SELECT
    lower(
        substr(hex(m.id), 1, 8) || '-' || substr(hex(m.id), 9, 4) || '-' || substr(hex(m.id), 13, 4) || '-'
        || substr(hex(m.id), 17, 4) || '-' || substr(hex(m.id), 21)
    ) AS id,
    m.id AS raw_id,
    m.seq AS seq,
    n.namespace AS namespace,
    n.tenant AS tenant,
    m.topic AS topic,
    m.order_key AS order_key,
    m.dedupe_key AS dedupe_key,
    CASE
        WHEN l.seq IS NOT NULL THEN 'leased'
        WHEN d.seq IS NOT NULL THEN d.state
        WHEN coalesce(r.seq, r2.seq, s.seq, k.seq, k2.seq) IS NOT NULL THEN 'pending'
        ELSE 'done'
    END AS state,
    d.reason AS reason,
    coalesce(
        l.attempts, d.attempts, r.attempts, r2.attempts, s.attempts, k.attempts, k2.attempts, e.attempts, a.attempt, 0
    ) AS attempts,
    coalesce(
        l.max_attempts, d.max_attempts, r.max_attempts, r2.max_attempts, s.max_attempts, k.max_attempts,
        k2.max_attempts, e.max_attempts, a.max_attempts, m.max_attempts
    ) AS max_attempts,
    coalesce(l.epoch, d.epoch, r.epoch, r2.epoch, s.epoch, k.epoch, k2.epoch, e.epoch, a.epoch, 0) AS epoch,
    coalesce(
        l.generation, d.generation, r.generation, r2.generation, s.generation, k.generation, k2.generation,
        e.generation, a.generation, 1
    ) AS generation,
    l.worker AS worker,
    l.deadline AS lease_until,
    CASE
        WHEN coalesce(r.seq, r2.seq, s.seq, k.seq, k2.seq) IS NOT NULL
            THEN coalesce(r.due_at, r2.due_at, s.due_at, k.due_at, k2.due_at, m.due_at)
    END AS due_at,
    CASE
        WHEN coalesce(l.seq, r.seq, r2.seq, s.seq, k.seq, k2.seq) IS NOT NULL AND m.kind <> 'step'
            THEN coalesce(l.deliver_by, r.deliver_by, r2.deliver_by, s.deliver_by, k.deliver_by, k2.deliver_by)
        ELSE m.deliver_by
    END AS deliver_by,
    m.created_at AS created_at,
    coalesce(
        l.granted_at, d.ended_at, r.changed_at, r2.changed_at, s.changed_at, k.changed_at, k2.changed_at,
        CASE
            WHEN coalesce(r.seq, r2.seq, s.seq, k.seq, k2.seq) IS NULL THEN coalesce(e.ended_at, a.finished_at)
        END,
        m.created_at
    ) AS updated_at,
    CASE
        WHEN d.seq IS NOT NULL THEN d.ended_at
        WHEN coalesce(l.seq, r.seq, r2.seq, s.seq, k.seq, k2.seq) IS NULL THEN coalesce(e.ended_at, a.finished_at)
    END AS finished_at,
    a.code AS last_code,
    a.error AS last_error,
    m.content_type AS content_type,
    m.bytes AS bytes,
    m.digest AS digest,
    m.kind AS kind,
    m.parent AS parent,
    CASE d.state
        WHEN 'quarantined' THEN (
            -- By the index on the message, never by that on the action.
            SELECT note FROM posthouse_audit WHERE id = m.id AND +action = 'quarantine' ORDER BY n DESC LIMIT 1
        )
    END AS note,
    m.destination AS destination,
    m.on_dead AS on_dead,
    coalesce(d.blocks, 0) AS blocks
FROM posthouse_message AS m
JOIN posthouse_lane AS n ON n.lane = m.lane
LEFT JOIN posthouse_leased AS l ON l.seq = m.seq
LEFT JOIN posthouse_dead AS d ON d.seq = m.seq
LEFT JOIN posthouse_ready AS r ON r.lane = m.lane AND r.pos = m.seq
LEFT JOIN posthouse_ready AS r2 ON r2.seq = m.seq AND r2.pos > r2.seq
LEFT JOIN posthouse_sched AS s ON s.seq = m.seq
LEFT JOIN posthouse_keyed AS k ON k.lane = m.lane AND k.key = m.order_key AND k.pos = m.seq
LEFT JOIN posthouse_keyed AS k2 ON k2.seq = m.seq AND k2.pos > k2.seq
LEFT JOIN posthouse_resolved AS e ON e.seq = m.seq
LEFT JOIN posthouse_attempt AS a
    ON a.seq = m.seq AND a.epoch = (SELECT max(epoch) FROM posthouse_attempt WHERE seq = m.seq);

-- The evidence, with the public identity of its message.
CREATE VIEW posthouse_attempts AS
SELECT
    m.id AS raw_id,
    a.epoch, a.generation, a.attempt, a.worker, a.token, a.outcome, a.code, a.error, a.receipt, a.started_at,
    a.finished_at,
    a.finished_at - a.started_at AS duration
FROM posthouse_attempt AS a
JOIN posthouse_message AS m ON m.seq = a.seq;
