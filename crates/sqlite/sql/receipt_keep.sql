INSERT INTO posthouse_receipt (effect, seq, receipt) VALUES (?1, ?2, ?3);
