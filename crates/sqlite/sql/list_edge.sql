-- The number of the message that is ?2 messages beyond the next. What is in braces is filled in by the program.
SELECT seq FROM posthouse_message WHERE seq {beyond} ?1 ORDER BY seq {order} LIMIT 1 OFFSET ?2;
