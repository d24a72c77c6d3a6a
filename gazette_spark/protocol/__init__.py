"""Messages of the wire protocol, with their parsing and validation."""
