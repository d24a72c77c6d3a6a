"""What a query may say: the options of reading, writing, CSV and stores, one table each."""
