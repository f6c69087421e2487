-- The time, and what every producer is held to: one look for both.
SELECT c.now, s.payload_bytes, s.require_tenant, s.max_attempts, s.dedupe_for
FROM posthouse_clock AS c
LEFT JOIN posthouse_settings AS s ON s.only_one = 1;
