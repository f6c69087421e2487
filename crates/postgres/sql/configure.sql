-- What every producer is held to. The owner's to change.
UPDATE posthouse.settings SET payload_bytes = $1, require_tenant = $2, max_attempts = $3, dedupe_lifetime = $4 * interval '1 millisecond'
