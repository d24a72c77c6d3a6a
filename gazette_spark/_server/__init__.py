"""Parts that broker and consumer service share: identity, tokens, TLS, ports, catalogs, assignments."""
