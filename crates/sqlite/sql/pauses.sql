SELECT destination, at, actor, reason FROM posthouse_pause ORDER BY destination;
