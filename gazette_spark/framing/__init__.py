"""Journal bytes to Arrow columns."""
