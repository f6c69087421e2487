-- The same of one of them.
SELECT tenant, scope, key, status, lease_until, message, checkpoint, http_status, length(result), digest, error, fingerprint, created_at, updated_at, expires_at
FROM posthouse_ledger
WHERE tenant = ?1 AND scope = ?2 AND key = ?3;
