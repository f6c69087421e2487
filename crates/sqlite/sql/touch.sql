-- Reads the first page of every table: a damaged file is refused when it is opened, not when it is full of leases.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM posthouse_lane LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_message LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_ready LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_sched LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_keyed LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_leased LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_dead LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_resolved LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_attempt LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_dedupe LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_receipt LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_audit LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_relay LIMIT 1))
    + (SELECT count(*) FROM (SELECT 1 FROM posthouse_pause LIMIT 1))
    + (SELECT now IS NULL FROM posthouse_clock);
