-- Nobody calls anything until a role is given the right to.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA posthouse FROM PUBLIC
