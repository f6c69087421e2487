-- The audit, newest first; of one message, or of all.
SELECT x.at, x.actor, x.action, x.message_id, x.detail
FROM posthouse.audit x
WHERE $1::uuid IS NULL OR x.message_id = $1
ORDER BY x.n DESC
LIMIT $2
