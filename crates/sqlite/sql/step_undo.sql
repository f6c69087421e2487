UPDATE posthouse_step SET undone = 1 WHERE consumer = ?1 AND key = ?2 AND undone = 0 RETURNING 1;
