SELECT destination, at, actor, note FROM posthouse_pause ORDER BY destination;
