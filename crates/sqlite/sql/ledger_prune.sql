-- Entries past their retention that nobody holds.
DELETE FROM posthouse_ledger WHERE rowid IN (
    SELECT rowid FROM posthouse_ledger
    WHERE expires_at <= ?1 AND NOT (status = 'in_flight' AND lease_until IS NOT NULL AND lease_until > ?1)
    ORDER BY expires_at LIMIT ?2)
