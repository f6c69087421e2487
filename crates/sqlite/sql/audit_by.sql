-- By the index on the actor.
SELECT n, at, actor, action, id, destination, note, pruned
FROM posthouse_audit
WHERE n < ?2 AND (?3 IS NULL OR action = ?3) AND actor = ?4
ORDER BY n DESC
LIMIT ?1;
