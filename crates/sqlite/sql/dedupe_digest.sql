-- The body is about to go; its digest stays, for the comparison with a later enqueue.
UPDATE posthouse_dedupe
SET digest = ?2
WHERE (lane, topic, key) = (SELECT lane, topic, dedupe_key FROM posthouse_message WHERE seq = ?1)
    AND seq = ?1
    AND digest IS NULL;
