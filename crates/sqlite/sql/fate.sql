-- What became of a lease: held still, or the evidence of its end, or neither. One statement, so that it is one state of the database.
SELECT
    EXISTS (SELECT 1 FROM posthouse_leased WHERE seq = ?1 AND token = ?3),
    (SELECT outcome FROM posthouse_attempt WHERE seq = ?1 AND epoch = ?2 AND token = ?3);
