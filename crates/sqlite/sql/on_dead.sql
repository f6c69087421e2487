SELECT on_dead = 'block' FROM posthouse_message WHERE seq = ?1;
