"""Fragment stores read without a broker: what a listing holds, and readers of the files."""
