DELETE FROM posthouse_saga_log WHERE saga = ?1;
