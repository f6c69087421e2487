SELECT n, at, actor, action, id, destination, note, pruned
FROM posthouse_audit
WHERE n < ?2
ORDER BY n DESC
LIMIT ?1;
