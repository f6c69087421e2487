-- The last part of back_to_*.sql: what waits, in the temporary table `going`, leaves Posthouse. Nothing to change here.

-- It is forgotten, so that it can be moved here again some day.
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT g.id FROM going g WHERE g.state = 'pending' LOOP
        PERFORM posthouse.cancel(r.id, 'export', 'moved back to the old outbox');
        PERFORM posthouse.discard(r.id, 'export', 'moved back to the old outbox');
        DELETE FROM outbox_moved d WHERE d.message_id = r.id;
    END LOOP;
END $$;

-- Both sides know all attempts now.
UPDATE outbox_moved d SET attempts = a.n FROM (
    SELECT g.id, count(*) AS n FROM going g JOIN posthouse.attempts a ON a.message_id = g.id WHERE g.state <> 'pending' GROUP BY g.id) a
WHERE d.message_id = a.id AND d.fate <> 'merged';

SELECT g.state, count(*) AS messages, CASE WHEN g.state = 'pending' THEN 'back in the old outbox' WHEN g.state = 'quarantined' THEN 'held here' ELSE 'ended here' END AS now
FROM going g GROUP BY g.state ORDER BY g.state;
