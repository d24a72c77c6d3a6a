"""An embedded broker for development and tests."""
