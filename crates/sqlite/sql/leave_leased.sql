DELETE FROM posthouse_leased WHERE seq = ?1;
