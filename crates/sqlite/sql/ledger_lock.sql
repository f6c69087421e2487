-- Takes the write lock, before the entry is read.
UPDATE posthouse_ledger SET updated_at = updated_at WHERE tenant = ?1 AND scope = ?2 AND key = ?3
