\echo in flight, by worker
SELECT worker, count(*) AS leases, date_trunc('second', min(lease_until) - clock_timestamp()) AS first_ends_in
FROM posthouse.backlog WHERE state = 'leased' AND lease_until > clock_timestamp() GROUP BY worker ORDER BY worker;
\echo leases that ran out, and nobody has taken over
SELECT worker, topic, order_key, attempts, max_attempts, date_trunc('second', clock_timestamp() - lease_until) AS since
FROM posthouse.backlog WHERE state = 'leased' AND lease_until <= clock_timestamp() ORDER BY lease_until, worker LIMIT 20;
\echo due and not taken, the oldest first
SELECT namespace, topic, count(*) AS due, date_trunc('second', clock_timestamp() - min(due_at)) AS oldest
FROM posthouse.backlog WHERE state = 'pending' AND due_at <= clock_timestamp() GROUP BY namespace, topic ORDER BY min(due_at) LIMIT 20;
\echo attempts by outcome, in the last hour
SELECT outcome, count(*) AS attempts, count(DISTINCT worker) AS workers, date_trunc('milliseconds', max(duration)) AS longest
FROM posthouse.attempts WHERE finished_at > clock_timestamp() - interval '1 hour' GROUP BY outcome ORDER BY outcome;
\echo who let a lease run out, in the last day
SELECT worker, count(*) AS leases, date_trunc('second', clock_timestamp() - max(finished_at)) AS last
FROM posthouse.attempts WHERE outcome = 'lease_expired' AND finished_at > clock_timestamp() - interval '1 day' GROUP BY worker ORDER BY worker;
\echo who came back too late, and what it found
SELECT actor AS worker, note, date_trunc('second', clock_timestamp() - at) AS since
FROM posthouse.audit WHERE action = 'outbox_flush_conflict' ORDER BY n DESC LIMIT 20;
