-- Read after the write lock is held, or time may pass between the judgement and the write.
SELECT now FROM posthouse_clock;
