-- Fresh places come from the sequence that numbers the messages, so that both tell the same order. Answers the last one.
UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'posthouse_message' RETURNING seq;
