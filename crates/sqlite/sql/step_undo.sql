UPDATE posthouse_step SET undone = 1, at = (SELECT now FROM posthouse_clock) WHERE consumer = ?1 AND key = ?2 AND undone = 0 RETURNING 1;
