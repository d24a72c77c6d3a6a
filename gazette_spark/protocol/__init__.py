"""The wire protocol: messages, and beside them their parsing and validation."""
