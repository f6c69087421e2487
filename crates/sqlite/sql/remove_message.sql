DELETE FROM posthouse_message WHERE seq = ?1;
