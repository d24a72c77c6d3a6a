"""A client of Gazette's broker protocol."""
