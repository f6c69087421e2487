SELECT fingerprint, status, token, lease_until, message, checkpoint, http_status, headers, result, digest, error, retention, created_at, updated_at, expires_at
FROM posthouse_ledger WHERE tenant = ?1 AND scope = ?2 AND key = ?3
