-- Ends those who are still connected from an earlier test, and answers how many there were. A pooler's connections stay, unless they are at work.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND NOT ($1 AND state = 'idle')
