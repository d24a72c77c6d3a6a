"""The options of reading, writing, CSV and stores, one table each."""
