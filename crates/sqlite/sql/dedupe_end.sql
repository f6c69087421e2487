-- The lifetime of a dedupe key begins when its message ends. A key that another message has taken since is not ours.
UPDATE posthouse_dedupe
SET ends_at = ?2 + lifetime
WHERE (lane, topic, key) = (SELECT lane, topic, dedupe_key FROM posthouse_message WHERE seq = ?1) AND seq = ?1;
