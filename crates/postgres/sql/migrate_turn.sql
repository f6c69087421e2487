-- One migrator at a time: takes the turn, or answers the server process of the one that has it. That one's work is then waited for, and seen.
SELECT CASE WHEN NOT t.taken THEN coalesce((
    SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE l.locktype = 'advisory' AND l.classid = 7260 AND l.objid = 1 AND l.objsubid = 2 AND l.granted AND d.datname = current_database() LIMIT 1), 0) END
FROM (SELECT pg_try_advisory_xact_lock(7260, 1) AS taken OFFSET 0) t
