UPDATE posthouse_leased SET deadline = ?3 WHERE seq = ?1 AND token = ?2 AND deadline > ?4 RETURNING seq;
