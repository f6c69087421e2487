-- Rows that triggers changed are counted here, though not by changes(): a duplicate changes none.
SELECT total_changes();
