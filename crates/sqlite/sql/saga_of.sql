SELECT parent FROM posthouse_message WHERE seq = ?1 AND kind IN ('step', 'compensation', 'timer');
