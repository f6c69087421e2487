INSERT INTO posthouse_saga (
    id, namespace, tenant, name, key, definition, digest, state, reason, snapshot, paused, revision, created_at, updated_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 1, ?11, ?11)
RETURNING seq;
