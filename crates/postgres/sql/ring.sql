-- Wakes sleeping relays. A NOTIFY in every commit would make all commits of the database queue up behind each other, so
-- it is sent only when somebody sleeps. A hint: a relay that is missed polls.
CREATE OR REPLACE FUNCTION posthouse.ring(p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM sleeper s WHERE s.until > p_now) THEN
        PERFORM pg_notify(current_schema(), '');
    END IF;
END $$;

-- A worker says that it is about to sleep; it claims once more before it does. Marks that ran out are those of relays that died
-- asleep: they are cleared away on the way.
CREATE OR REPLACE FUNCTION posthouse.fall_asleep(p_bell uuid, p_worker text, p_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    t CONSTANT timestamptz := clock();
BEGIN
    DELETE FROM sleeper s WHERE s.ctid = ANY (ARRAY(SELECT x.ctid FROM sleeper x WHERE x.until <= t LIMIT 100 FOR UPDATE SKIP LOCKED));
    INSERT INTO sleeper (bell, worker, until) VALUES (p_bell, p_worker, t + p_ms * interval '1 millisecond')
    ON CONFLICT (bell, worker) DO UPDATE SET until = excluded.until;
END $$;
