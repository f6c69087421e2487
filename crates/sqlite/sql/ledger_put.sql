INSERT INTO posthouse_ledger (tenant, scope, key, fingerprint, status, token, lease_until, message, checkpoint, http_status, headers, result, digest, error, retention, created_at, updated_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT (tenant, scope, key) DO UPDATE SET
    fingerprint = excluded.fingerprint, status = excluded.status, token = excluded.token, lease_until = excluded.lease_until, message = excluded.message,
    checkpoint = excluded.checkpoint, http_status = excluded.http_status, headers = excluded.headers, result = excluded.result, digest = excluded.digest,
    error = excluded.error, retention = excluded.retention, created_at = excluded.created_at, updated_at = excluded.updated_at, expires_at = excluded.expires_at
