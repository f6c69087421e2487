SELECT receipt FROM posthouse_receipt WHERE effect = ?1 ORDER BY seq LIMIT 1;
