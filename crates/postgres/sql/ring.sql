-- Wakes sleeping relays. A NOTIFY in every commit would make all commits of the database queue up behind each other, so
-- it is sent only when somebody sleeps. A hint: a relay that is missed polls.
CREATE OR REPLACE FUNCTION posthouse.ring(p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM sleeper s WHERE s.until > p_now) THEN
        PERFORM pg_notify(current_schema(), '');
    END IF;
END $$;

-- A relay says that it is about to sleep; it claims once more before it does.
CREATE OR REPLACE FUNCTION posthouse.fall_asleep(p_worker text, p_ms bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
    INSERT INTO sleeper (worker, until) VALUES (p_worker, clock() + p_ms * interval '1 millisecond')
    ON CONFLICT (worker) DO UPDATE SET until = excluded.until
$$;
