-- Messages by state, among at most ?1 rows of each table; ?2 is the time. Rows of sched in the order in which they fall
-- due, so that all that are due are seen first. Where a ready message has no due time it is due since it was enqueued, and the
-- first number is the oldest. `low` is the first number that waits or is leased.
SELECT
    r.n, r.later, r.oldest, (SELECT due_at FROM posthouse_message WHERE seq = r.first), r.low,
    s.n, s.later, s.oldest, s.last,
    k.n, k.later, k.oldest, k.low,
    l.n, l.expired, l.low,
    d.n, d.quarantined,
    b.n
FROM
    (
        SELECT
            count(*) AS n, count(*) FILTER (WHERE due_at > ?2) AS later, min(due_at) FILTER (WHERE due_at <= ?2) AS oldest,
            min(seq) FILTER (WHERE due_at IS NULL) AS first, min(seq) AS low
        FROM (SELECT seq, due_at FROM posthouse_ready LIMIT ?1)
    ) AS r,
    (
        SELECT count(*) AS n, count(*) FILTER (WHERE due_at > ?2) AS later, min(due_at) FILTER (WHERE due_at <= ?2) AS oldest, max(wake_at) AS last
        FROM (SELECT wake_at, due_at FROM posthouse_sched ORDER BY wake_at LIMIT ?1)
    ) AS s,
    (
        SELECT count(*) AS n, count(*) FILTER (WHERE due_at > ?2) AS later, min(due_at) FILTER (WHERE due_at <= ?2) AS oldest, min(seq) AS low
        FROM (SELECT seq, due_at FROM posthouse_keyed LIMIT ?1)
    ) AS k,
    (
        SELECT count(*) AS n, count(*) FILTER (WHERE deadline <= ?2) AS expired, min(seq) AS low
        FROM (SELECT seq, deadline FROM posthouse_leased LIMIT ?1)
    ) AS l,
    (
        SELECT count(*) AS n, count(*) FILTER (WHERE state = 'quarantined') AS quarantined
        FROM (SELECT state FROM posthouse_dead LIMIT ?1)
    ) AS d,
    (SELECT count(*) AS n FROM (SELECT DISTINCT lane, key FROM posthouse_dead WHERE blocks = 1 LIMIT ?1)) AS b;
