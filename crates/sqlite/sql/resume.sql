DELETE FROM posthouse_pause WHERE destination = ?1;
