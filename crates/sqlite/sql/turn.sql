SELECT lane FROM posthouse_turn WHERE only_one = 1;
