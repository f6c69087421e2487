INSERT INTO posthouse_inbox (consumer, message, at) VALUES (?1, ?2, (SELECT now FROM posthouse_clock)) ON CONFLICT DO NOTHING RETURNING 1
