-- One page of messages, newest first. The view's look-ups run for the messages of the page alone.
SELECT * FROM posthouse.messages v
WHERE ($1::text IS NULL OR v.namespace = $1)
  AND ($2::text IS NULL OR v.tenant = $2)
  AND ($3::text IS NULL OR v.topic = $3)
  AND ($4::text IS NULL OR v.state = $4)
  AND ($5::text IS NULL OR v.order_key = $5)
  AND ($6::bigint IS NULL OR v.seq < $6)
ORDER BY v.seq DESC
LIMIT $7
