SELECT name, told, started_at, seen_at, until > (SELECT now FROM posthouse_clock) FROM posthouse_relay ORDER BY name;
