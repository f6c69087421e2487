-- One that was silent for too long, or has left, begins anew.
INSERT INTO posthouse_relay (name, told, started_at, seen_at, until)
VALUES (?1, ?2, ?3, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET
    told = excluded.told,
    started_at = CASE WHEN until > excluded.seen_at THEN started_at ELSE excluded.started_at END,
    seen_at = excluded.seen_at,
    until = excluded.until;
