-- How many messages of a range of numbers stand where; ?3 is the time.
SELECT
    count(*),
    count(*) FILTER (WHERE state = 'pending' AND due_at <= ?3),
    count(*) FILTER (WHERE state = 'pending' AND due_at > ?3),
    count(*) FILTER (WHERE state = 'leased'),
    count(*) FILTER (WHERE state = 'leased' AND lease_until <= ?3),
    count(*) FILTER (WHERE state = 'dead'),
    count(*) FILTER (WHERE state = 'quarantined'),
    count(*) FILTER (WHERE blocks = 1)
FROM posthouse_messages
WHERE seq >= ?1 AND seq < ?2;
