DELETE FROM posthouse_ready WHERE lane = ?1 AND pos = ?2;
