DELETE FROM posthouse_dedupe
WHERE (lane, topic, key) = (SELECT lane, topic, dedupe_key FROM posthouse_message WHERE seq = ?1) AND seq = ?1;
