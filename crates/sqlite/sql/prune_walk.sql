-- Every message by number, with the time it ended, if it did and may go. The reader stops where those
-- begin that were enqueued too late to be old, because numbers and times rise together.
SELECT
    seq,
    created_at,
    CASE WHEN state IN ('done', 'dead') AND blocks = 0 THEN finished_at END
FROM posthouse_messages
ORDER BY seq;
