INSERT INTO posthouse_settings (only_one, payload_bytes, require_tenant, max_attempts, dedupe_for)
VALUES (1, ?1, ?2, ?3, ?4)
ON CONFLICT (only_one) DO UPDATE SET
    payload_bytes = excluded.payload_bytes,
    require_tenant = excluded.require_tenant,
    max_attempts = excluded.max_attempts,
    dedupe_for = excluded.dedupe_for;
