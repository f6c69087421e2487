INSERT INTO posthouse_saga_definition (namespace, name, version, hash, body)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (namespace, name, version) DO NOTHING;
