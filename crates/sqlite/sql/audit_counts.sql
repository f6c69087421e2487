-- The counts of a prune, in its audit row.
UPDATE posthouse_audit SET pruned = ?2 WHERE n = ?1;
