SELECT (SELECT min(seq) FROM posthouse_message), (SELECT max(seq) FROM posthouse_message);
