DELETE FROM posthouse_receipt WHERE seq = ?1;
