-- Every message by number, with the time it ended, if it did and may go: not a dead letter of a saga that waits for a person. The reader
-- stops where those begin that were enqueued too late to be old, because numbers and times rise together.
SELECT
    v.seq,
    v.created_at,
    CASE
        WHEN v.state = 'done' THEN v.finished_at
        WHEN v.state = 'dead' AND v.blocks = 0 AND NOT EXISTS (
            SELECT 1
            FROM posthouse_message AS m
            JOIN posthouse_saga AS s ON s.id = m.parent
            WHERE m.seq = v.seq AND s.finished_at IS NULL
        ) THEN v.finished_at
    END
FROM posthouse_messages AS v
ORDER BY v.seq;
