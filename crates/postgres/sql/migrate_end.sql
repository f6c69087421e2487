-- The version this schema has, and the oldest one that can work on it.
INSERT INTO posthouse.schema_version AS v (version, oldest) VALUES ($1, $2)
ON CONFLICT (one) DO UPDATE SET version = excluded.version, oldest = excluded.oldest
WHERE (v.version, v.oldest) IS DISTINCT FROM (excluded.version, excluded.oldest)
