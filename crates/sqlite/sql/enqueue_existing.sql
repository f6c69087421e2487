-- The message that stands for this one, by its id, else by its dedupe key; and whether its content is the same. Bytes are
-- compared while they are there, then digests; where one is missing the key decides.
SELECT 'id', id, content_type = ?6 AND payload = ?7
FROM posthouse_message
WHERE id = ?1
UNION ALL
SELECT
    'dedupe_key',
    d.id,
    CASE WHEN m.seq IS NULL THEN coalesce(d.digest = ?8, 1) ELSE m.content_type = ?6 AND m.payload = ?7 END
FROM posthouse_lane AS l
JOIN posthouse_dedupe AS d ON d.lane = l.lane AND d.topic = ?4 AND d.key = ?5
LEFT JOIN posthouse_message AS m ON m.seq = d.seq
WHERE l.namespace = ?2 AND l.tenant = ?3;
