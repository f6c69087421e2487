UPDATE posthouse_turn SET lane = ?1 WHERE only_one = 1;
