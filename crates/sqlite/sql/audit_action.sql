-- By the index on the action.
SELECT n, at, actor, action, id, destination, note, pruned
FROM posthouse_audit
WHERE n < ?2 AND action = ?3
ORDER BY n DESC
LIMIT ?1;
