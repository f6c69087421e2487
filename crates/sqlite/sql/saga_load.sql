SELECT
    s.id, s.seq, s.namespace, s.tenant, s.name, d.version, s.key, s.state, s.reason, s.paused, s.revision, s.created_at,
    s.updated_at, s.finished_at, d.body, s.snapshot
FROM posthouse_saga AS s
JOIN posthouse_saga_definition AS d ON d.n = s.definition
WHERE s.id = ?1;
