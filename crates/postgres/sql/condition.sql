-- How the server is: its clock, what decides whether a commit survives, where it was reached, and whether this role sees what others do.
SELECT pg_catalog.clock_timestamp() AS now, pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
       pg_catalog.current_setting('fsync') AS fsync, pg_catalog.current_setting('full_page_writes') AS full_page_writes,
       pg_catalog.inet_server_port() AS port, pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all
