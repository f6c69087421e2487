SELECT
    s.id, s.seq, s.namespace, s.tenant, s.name, d.version, s.key, s.state, s.reason, s.paused, s.revision, s.created_at,
    s.updated_at, s.finished_at
FROM posthouse_saga AS s
JOIN posthouse_saga_definition AS d ON d.n = s.definition
WHERE s.seq < ?1
    AND (?2 IS NULL OR s.namespace = ?2)
    AND (?3 IS NULL OR s.tenant = ?3)
    AND (?4 IS NULL OR s.name = ?4)
    AND (?5 IS NULL OR s.key = ?5)
    AND (?6 IS NULL OR s.state = ?6)
    AND (?7 IS NULL OR s.reason = ?7)
ORDER BY s.seq DESC
LIMIT ?8;
