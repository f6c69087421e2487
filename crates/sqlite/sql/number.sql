SELECT seq, deliver_by FROM posthouse_message WHERE id = ?1;
