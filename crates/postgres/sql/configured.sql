SELECT payload_bytes, require_tenant, max_attempts, (extract(epoch FROM dedupe_lifetime) * 1000)::bigint FROM posthouse.settings
