-- The audit, newest first.
SELECT x.n, x.at, x.actor, x.action, x.message_id, x.destination, x.note,
       (x.pruned || jsonb_build_object('cutoff', (extract(epoch FROM (x.pruned ->> 'cutoff')::timestamptz) * 1000000)::bigint))::text AS pruned
FROM posthouse.audit x
WHERE ($1::uuid IS NULL OR x.message_id = $1)
  AND ($2::text IS NULL OR x.actor = $2)
  AND ($3::text IS NULL OR x.action = $3)
  AND ($4::bigint IS NULL OR x.n < $4)
ORDER BY x.n DESC
LIMIT $5
