-- By the index on the message.
SELECT n, at, actor, action, id, destination, note, pruned
FROM posthouse_audit
WHERE n < ?2 AND (?3 IS NULL OR action = ?3) AND (?4 IS NULL OR actor = ?4) AND id = ?5
ORDER BY n DESC
LIMIT ?1;
