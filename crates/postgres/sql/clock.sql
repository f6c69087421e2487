-- The one clock. Leases and due times are judged by it and by nothing else; a test may replace its body.
-- In a predicate write (SELECT posthouse.clock()), or a volatile function is no index condition.
CREATE OR REPLACE FUNCTION posthouse.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE RETURN clock_timestamp();
