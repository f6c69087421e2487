DELETE FROM posthouse_dedupe
WHERE (lane, topic, key) IN (
    SELECT lane, topic, key
    FROM posthouse_dedupe
    WHERE ends_at IS NOT NULL AND ends_at <= ?1
    ORDER BY ends_at
    LIMIT ?2
);
