-- Whose evidence settle_plain has written, while they are still leased: its conditions, word for word.
SELECT seq
FROM posthouse_leased
WHERE seq BETWEEN ?1 AND ?2 AND token = ?3 AND deadline > ?4 AND key IS NULL AND deduped = 0;
