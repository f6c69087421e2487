DELETE FROM posthouse_leased WHERE seq BETWEEN ?1 AND ?2;
