INSERT INTO posthouse_saga_log (saga, n, revision, at, actor, what, step, detail)
VALUES (?1, (SELECT coalesce(max(n), 0) + 1 FROM posthouse_saga_log WHERE saga = ?1), ?2, ?3, ?4, ?5, ?6, ?7);
