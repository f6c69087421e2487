-- How it ended: whether it blocks its key, and whether an operator declared it delivered.
SELECT
    EXISTS (SELECT 1 FROM posthouse_dead WHERE seq = ?1 AND blocks = 1),
    EXISTS (SELECT 1 FROM posthouse_resolved WHERE seq = ?1);
