-- The same for a message that is due at once and has neither an order key nor a dedupe key.
INSERT OR ROLLBACK INTO posthouse_plain (
    id, now, topic, payload, bytes, content_type, tenant, namespace, headers, deliver_in, max_attempts, on_dead, digest,
    kind, parent, destination
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16);
