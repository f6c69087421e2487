-- Entries as operators see them, by tenant, scope and key, after one of them.
SELECT tenant, scope, key, status, lease_until, message, checkpoint, http_status, length(result), digest, error, fingerprint, created_at, updated_at, expires_at
FROM posthouse_ledger
WHERE (tenant, scope, key) > (?1, ?2, ?3)
ORDER BY tenant, scope, key
LIMIT ?4;
