-- Relays tell of themselves, and hear which destinations are paused. One that has been silent for a day is forgotten.
CREATE OR REPLACE FUNCTION posthouse.heartbeat(p_name text, p_ttl_ms bigint, p_info jsonb) RETURNS SETOF posthouse.pause
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    t CONSTANT timestamptz := clock();
BEGIN
    PERFORM check_name('relay', p_name, 1, 255);
    INSERT INTO relay AS r (name, started_at, seen_at, until, info) VALUES (p_name, t, t, t + p_ttl_ms * interval '1 millisecond', p_info)
    ON CONFLICT (name) DO UPDATE SET
        started_at = CASE WHEN r.until > t THEN r.started_at ELSE t END, seen_at = t, until = excluded.until, info = excluded.info;
    DELETE FROM relay r WHERE r.ctid = ANY (ARRAY(SELECT q.ctid FROM relay q WHERE q.seen_at < t - interval '1 day' FOR UPDATE SKIP LOCKED));
    RETURN QUERY SELECT p.* FROM pause p ORDER BY p.destination COLLATE "C";
END $$;

CREATE OR REPLACE FUNCTION posthouse.leave(p_name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
    UPDATE relay SET seen_at = clock(), until = clock() WHERE name = p_name
$$;

-- Stops all relays from sending to a destination, within a heartbeat.
CREATE OR REPLACE FUNCTION posthouse.pause_destination(destination text, actor text, note text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM check_destination(pause_destination.destination, pause_destination.actor);
    INSERT INTO pause (destination, at, actor, note)
    VALUES (pause_destination.destination, clock(), clean(pause_destination.actor, 512), coalesce(clean(pause_destination.note, 512), ''))
    ON CONFLICT (destination) DO NOTHING;
    PERFORM write_audit(NULL, pause_destination.actor, 'pause', pause_destination.note, pause_destination.destination);
END $$;

-- Lets them go on. Answers whether it was paused.
CREATE OR REPLACE FUNCTION posthouse.resume_destination(destination text, actor text, note text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    was_paused boolean;
BEGIN
    PERFORM check_destination(resume_destination.destination, resume_destination.actor);
    DELETE FROM pause p WHERE p.destination = resume_destination.destination;
    was_paused := FOUND;
    PERFORM write_audit(NULL, resume_destination.actor, 'resume', resume_destination.note, resume_destination.destination);
    PERFORM ring(clock());
    RETURN was_paused;
END $$;

CREATE OR REPLACE FUNCTION posthouse.check_destination(p_destination text, p_actor text) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_destination IS NULL THEN
        RAISE 'destination: must not be NULL' USING ERRCODE = 'P7006';
    ELSIF coalesce(p_actor, '') = '' THEN
        RAISE 'actor: is empty' USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name('destination', p_destination, 1, 2048);
END $$;
