-- A message, its tenant, and its headers with its entry in the ledger.
SELECT m.id, l.tenant, m.headers FROM posthouse_message AS m JOIN posthouse_lane AS l ON l.lane = m.lane WHERE m.seq = ?1;
