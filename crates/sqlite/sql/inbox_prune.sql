-- What consumers had until then, of messages that nobody can deliver again.
DELETE FROM posthouse_inbox WHERE (consumer, message) IN (
    SELECT consumer, message FROM (SELECT consumer, message FROM posthouse_inbox WHERE at <= ?1 ORDER BY at LIMIT 10 * ?2) AS old
    WHERE NOT EXISTS (SELECT 1 FROM posthouse_message AS m WHERE m.id = old.message)
    LIMIT ?2)
