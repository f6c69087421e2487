-- When the message under a dedupe key ended; NULL while it lives. Read when asked, so that no settlement pays for it.
CREATE OR REPLACE FUNCTION posthouse.dedupe_ended(p_id uuid, p_ended_at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT coalesce(p_ended_at, (SELECT v.finished_at FROM messages v WHERE v.id = p_id))
$$;

-- Which of the messages are there already: for each the id that stands for it, or NULL when it is new. New dedupe keys
-- are taken here. Insert, then look: one statement would answer nothing when a rival commits in between. Under REPEATABLE
-- READ the insert raises 40001 instead, and the caller runs its transaction again.
CREATE OR REPLACE FUNCTION posthouse.find_twins(
    p_id uuid[], p_namespace text[], p_tenant text[], p_topic text[], p_dedupe_key text[], p_digest bytea[],
    p_keep boolean[], p_check_ids boolean, p_now timestamptz)
RETURNS uuid[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    n int := cardinality(p_topic);
    twins uuid[] := array_fill(NULL::uuid, ARRAY[n]);
    hashes bytea[];
    open_at int[];
    taken uuid[];
    lifetime interval;
    r record;
BEGIN
    IF p_check_ids THEN
        FOR r IN
            SELECT u.o, u.id, coalesce(m.digest, b.dg) <> u.dg AS differs, coalesce(u.keep, false) AS keep
            FROM unnest(p_id, p_digest, p_keep) WITH ORDINALITY u(id, dg, keep, o)
            LEFT JOIN LATERAL (SELECT m.id, m.digest FROM message m WHERE m.id = u.id OFFSET 0) m ON true
            LEFT JOIN LATERAL (SELECT p_digest[array_position(p_id, u.id)] AS dg WHERE array_position(p_id, u.id) < u.o) b ON true
            WHERE m.id IS NOT NULL OR b.dg IS NOT NULL
        LOOP
            IF r.differs AND NOT r.keep THEN
                RAISE 'the id is already used by message %, which has other content', r.id USING ERRCODE = 'P7004', DETAIL = r.id, HINT = 'id';
            END IF;
            twins[r.o] := r.id;
        END LOOP;
    END IF;
    IF p_dedupe_key IS NULL THEN RETURN twins; END IF;

    SELECT array_agg(CASE WHEN u.k IS NOT NULL AND twins[u.o] IS NULL THEN dedupe_hash(u.ns, u.te, u.topic, u.k) END ORDER BY u.o)
    INTO hashes FROM unnest(p_namespace, p_tenant, p_topic, p_dedupe_key) WITH ORDINALITY u(ns, te, topic, k, o);
    SELECT s.dedupe_lifetime INTO lifetime FROM settings s;
    -- Ends: a round that decides nothing means that a rival took and freed a key meanwhile, which cannot go on for long.
    FOR round IN 1..10 LOOP
        SELECT array_agg(u.o::int ORDER BY u.o) INTO open_at FROM unnest(hashes) WITH ORDINALITY u(h, o) WHERE u.h IS NOT NULL;
        EXIT WHEN open_at IS NULL;
        -- Sorted, so that two bulk enqueues take their keys in the same order and cannot deadlock.
        WITH w AS (
            INSERT INTO dedupe (key_hash, id, digest)
            SELECT DISTINCT ON (hashes[o]) hashes[o], p_id[o], p_digest[o] FROM unnest(open_at) o ORDER BY hashes[o], o
            ON CONFLICT (key_hash) DO NOTHING RETURNING id)
        SELECT coalesce(array_agg(w.id), '{}') INTO taken FROM w;
        FOR r IN
            SELECT o, d.id, d.digest, coalesce(p_keep[o], false) AS keep,
                   dedupe_ended(d.id, d.ended_at) + lifetime <= p_now AS free
            FROM unnest(open_at) o CROSS JOIN LATERAL (SELECT d.* FROM dedupe d WHERE d.key_hash = hashes[o] OFFSET 0) d
            -- In the same order too: a key whose lifetime is over is taken here.
            ORDER BY hashes[o], o
        LOOP
            IF r.id = p_id[r.o] AND p_id[r.o] = ANY (taken) THEN
                hashes[r.o] := NULL;
            ELSIF r.free THEN
                UPDATE dedupe d SET id = p_id[r.o], digest = p_digest[r.o], ended_at = NULL
                WHERE d.key_hash = hashes[r.o] AND d.id = r.id;
                IF FOUND THEN hashes[r.o] := NULL; END IF;
            ELSIF r.digest <> p_digest[r.o] AND NOT r.keep THEN
                RAISE 'the dedupe_key is already used by message %, which has other content', r.id
                    USING ERRCODE = 'P7004', DETAIL = r.id, HINT = 'dedupe_key';
            ELSE
                twins[r.o] := r.id;
                hashes[r.o] := NULL;
            END IF;
        END LOOP;
    END LOOP;
    IF open_at IS NOT NULL THEN
        RAISE 'a dedupe key was taken and freed too often; run the transaction again' USING ERRCODE = '40001';
    END IF;
    RETURN twins;
END $$;
