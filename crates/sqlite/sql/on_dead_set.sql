-- The route's word in the place of the one before. Seldom: only where they differ.
UPDATE posthouse_message SET on_dead = ?2 WHERE seq = ?1 AND on_dead <> ?2;
