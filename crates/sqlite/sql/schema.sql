SELECT version, oldest FROM posthouse_schema WHERE only_one = 1;
