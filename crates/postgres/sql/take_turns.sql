-- Producers of a strict order key take turns until commit, before a number is drawn: the order of the numbers is then
-- the order of the commits. 1,024 buckets for each namespace and tenant, because one lock for each key would overflow the
-- lock table on a bulk enqueue; sorted, so that two bulk enqueues cannot deadlock. Claims and settlements never come here.
CREATE OR REPLACE FUNCTION posthouse.take_turns(p_namespace text[], p_tenant text[], p_key text[], p_relaxed boolean[])
RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(x.a, x.b)
    FROM (SELECT DISTINCT hashtext(current_schema() || E'\x1f' || u.ns || E'\x1f' || u.te) AS a, (key_hash(u.ns, u.te, u.k) & 1023)::int AS b
          FROM unnest(p_namespace, p_tenant, p_key, p_relaxed) u(ns, te, k, relaxed)
          WHERE u.k IS NOT NULL AND NOT coalesce(u.relaxed, false)
          ORDER BY 1, 2) x;
END $$;
