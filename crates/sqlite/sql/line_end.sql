-- The last place of a lane's line. Whatever comes later gets a higher one.
SELECT max(pos) FROM posthouse_ready WHERE lane = ?1;
