-- The first who paused it is the one who did.
INSERT INTO posthouse_pause (destination, at, actor, note) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (destination) DO NOTHING;
