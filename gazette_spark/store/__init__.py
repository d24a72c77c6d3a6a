"""Fragment stores read without a broker: their listings, and readers of their files."""
