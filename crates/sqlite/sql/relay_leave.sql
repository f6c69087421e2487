UPDATE posthouse_relay SET seen_at = ?2, until = ?2 WHERE name = ?1;
