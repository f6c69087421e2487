INSERT INTO posthouse_schema (only_one, version, oldest)
VALUES (1, ?1, ?2)
ON CONFLICT (only_one) DO UPDATE SET version = excluded.version, oldest = excluded.oldest;
