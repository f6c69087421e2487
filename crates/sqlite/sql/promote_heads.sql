-- Heads of keys whose time has come are free.
UPDATE posthouse_keyed
SET free = 1, wake_at = NULL
WHERE (lane, key, pos) IN (
    SELECT lane, key, pos
    FROM posthouse_keyed
    WHERE wake_at IS NOT NULL AND wake_at <= ?1
    ORDER BY wake_at
    LIMIT ?2
);
