-- Nobody calls anything until a role is given the right to; but for the plain arithmetic that the views and other languages need:
-- PostgreSQL asks whoever reads a view for the right to each function in it.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA posthouse FROM PUBLIC;
GRANT EXECUTE ON FUNCTION posthouse.lane, posthouse.key_hash, posthouse.prefixed, posthouse.digest, posthouse.outcome_word, posthouse.reason_word, posthouse.kind_word TO PUBLIC
