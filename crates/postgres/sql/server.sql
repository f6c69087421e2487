-- Whether the server takes this name without quotes, and how it encodes texts. Only it knows its reserved words.
SELECT quote_ident($1) = $1, current_setting('server_encoding')
