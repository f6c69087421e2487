SELECT state, worker, epoch FROM posthouse_messages WHERE raw_id = ?1;
