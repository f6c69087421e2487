-- The next message from a number on, and its time.
SELECT seq, created_at FROM posthouse_message WHERE seq >= ?1 ORDER BY seq LIMIT 1;
