-- Every message by number, with the time it ended if it is done. The reader stops where those begin that were enqueued too late to
-- be old, because numbers and times rise together.
SELECT
    v.seq,
    v.created_at,
    CASE WHEN v.state = 'done' THEN v.finished_at END
FROM posthouse_messages AS v
ORDER BY v.seq;
