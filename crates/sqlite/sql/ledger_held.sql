-- Whether a lease is held, ran out or not.
SELECT 1 FROM posthouse_leased WHERE seq = ?1 AND token = ?2;
