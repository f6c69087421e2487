-- The audit row of a prune that goes on, if this actor wrote it.
SELECT pruned FROM posthouse_audit WHERE n = ?1 AND action = 'prune' AND actor = ?2;
