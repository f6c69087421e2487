-- How many messages there are, as far as ?1; by the narrow index.
SELECT count(*) FROM (SELECT id FROM posthouse_message INDEXED BY sqlite_autoindex_posthouse_message_1 LIMIT ?1);
