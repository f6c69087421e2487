SELECT content_type, payload
FROM posthouse_message
WHERE seq = ?1 AND dedupe_key IS NOT NULL AND digest IS NULL;
