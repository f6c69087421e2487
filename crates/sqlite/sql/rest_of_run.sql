-- The next of the later messages of a key that the same claim still holds.
SELECT seq FROM posthouse_leased
WHERE lane = ?1 AND key = CAST(?2 AS TEXT) AND pos > ?3 AND token = ?4 AND deadline > ?5
LIMIT 1;
