DELETE FROM posthouse_dead WHERE seq = ?1;
