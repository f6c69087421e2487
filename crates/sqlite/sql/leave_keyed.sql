DELETE FROM posthouse_keyed WHERE lane = ?1 AND key = ?2 AND pos = ?3;
