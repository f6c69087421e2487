-- Whether the server takes this name without quotes, and how it encodes texts. Only it knows its reserved words.
SELECT pg_catalog.quote_ident($1) = $1, pg_catalog.current_setting('server_encoding')
