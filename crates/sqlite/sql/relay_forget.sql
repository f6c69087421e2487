DELETE FROM posthouse_relay WHERE seen_at < ?1;
