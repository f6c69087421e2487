-- The live record of a message, wherever it is. Each branch is one look: see the remarks on ready and keyed in the schema.
SELECT
    'ready', seq, lane, NULL AS key, pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by,
    deduped, released_by, 0 AS blocks
FROM posthouse_ready
WHERE lane = (SELECT lane FROM posthouse_message WHERE seq = ?1) AND pos = ?1
UNION ALL
SELECT
    'ready', seq, lane, NULL, pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped,
    released_by, 0
FROM posthouse_ready
WHERE seq = ?1 AND pos > seq
UNION ALL
SELECT
    'sched', seq, lane, NULL, seq, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped,
    released_by, 0
FROM posthouse_sched
WHERE seq = ?1
UNION ALL
SELECT
    'keyed', seq, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped,
    released_by, 0
FROM posthouse_keyed
WHERE lane = (SELECT lane FROM posthouse_message WHERE seq = ?1)
    AND key = (SELECT order_key FROM posthouse_message WHERE seq = ?1)
    AND pos = ?1
UNION ALL
SELECT
    'keyed', seq, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped,
    released_by, 0
FROM posthouse_keyed
WHERE seq = ?1 AND pos > seq
UNION ALL
SELECT
    'leased', seq, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped,
    NULL, 0
FROM posthouse_leased
WHERE seq = ?1
UNION ALL
SELECT
    state, seq, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, 0, NULL, deduped, NULL, blocks
FROM posthouse_dead
WHERE seq = ?1;
