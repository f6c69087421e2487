-- Whether there may be something to claim at all. A look without the write lock, so that an idle relay takes it never.
SELECT
    EXISTS (SELECT 1 FROM posthouse_ready)
    OR EXISTS (SELECT 1 FROM posthouse_keyed WHERE free = 1)
    OR EXISTS (SELECT 1 FROM posthouse_sched WHERE wake_at <= (SELECT now FROM posthouse_clock))
    OR EXISTS (
        SELECT 1
        FROM posthouse_keyed
        WHERE wake_at IS NOT NULL AND wake_at <= (SELECT now FROM posthouse_clock)
    );
