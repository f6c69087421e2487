-- The number of the next message. What is in braces is filled in by the program.
SELECT seq FROM posthouse_message WHERE seq {beyond} ?1 ORDER BY seq {order} LIMIT 1;
