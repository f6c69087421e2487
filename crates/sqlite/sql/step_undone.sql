SELECT undone FROM posthouse_step WHERE consumer = ?1 AND key = ?2;
