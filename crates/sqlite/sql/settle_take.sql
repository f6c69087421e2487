-- The fence: the same token, and the deadline ahead; or past (?4 = 1), for the settlement that reports just that.
DELETE FROM posthouse_leased
WHERE seq = ?1 AND token = ?2 AND (deadline <= ?3) = ?4
RETURNING
    seq, lane, CAST(key AS BLOB), pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped, worker,
    granted_at;
