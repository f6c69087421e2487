-- How many messages wait, as far as ?1.
SELECT count(*)
FROM (
    SELECT 1 FROM posthouse_ready
    UNION ALL
    SELECT 1 FROM posthouse_sched
    UNION ALL
    SELECT 1 FROM posthouse_keyed
    LIMIT ?1
);
