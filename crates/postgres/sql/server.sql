-- Whether the server takes this name without quotes, how it encodes texts, and whether transactions must ask for READ COMMITTED. Only it knows its reserved words.
SELECT pg_catalog.quote_ident($1) = $1, pg_catalog.current_setting('server_encoding'),
       pg_catalog.current_setting('default_transaction_isolation') <> 'read committed'
