SELECT n, revision, at, actor, what, step, detail
FROM posthouse_saga_log
WHERE saga = (SELECT seq FROM posthouse_saga WHERE id = ?1) AND n > ?2
ORDER BY n
LIMIT ?3;
