-- Who keeps rows from being vacuumed, the oldest first. A role that may not see what others do still sees their transactions' numbers, but not
-- their times nor what kind of process it is.
SELECT h.kind, h.pid, h.name, h.state, h.seconds, h.transactions
FROM (
    SELECT 'session' AS kind, a.pid, coalesce(a.usename::text, 'dropped role ' || a.usesysid) AS name, coalesce(a.state, '') AS state,
           extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::float8 AS seconds,
           greatest(pg_catalog.age(a.backend_xid), pg_catalog.age(a.backend_xmin))::bigint AS transactions
    FROM pg_catalog.pg_stat_activity a
    WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
      AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
      -- What vacuums does not hold up vacuuming, and has no role: all that a role tells it by that may not see its kind.
      AND a.usesysid IS NOT NULL
      -- Standbys come below.
      AND a.backend_type IS DISTINCT FROM 'walsender'
    UNION ALL
    SELECT 'prepared', NULL, p.gid, 'prepared by ' || p.owner, extract(epoch FROM pg_catalog.clock_timestamp() - p.prepared)::float8,
           pg_catalog.age(p.transaction)::bigint
    FROM pg_catalog.pg_prepared_xacts p WHERE p.database = pg_catalog.current_database()
    UNION ALL
    SELECT 'slot', s.active_pid, s.slot_name::text, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, pg_catalog.age(s.xmin)::bigint
    FROM pg_catalog.pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT 'standby', r.pid, coalesce(nullif(r.application_name, ''), r.client_addr::text, ''), coalesce(r.state, ''), NULL,
           pg_catalog.age(r.backend_xmin)::bigint
    FROM pg_catalog.pg_stat_replication r WHERE r.backend_xmin IS NOT NULL) h
ORDER BY h.seconds DESC NULLS LAST, h.transactions DESC
LIMIT 100
