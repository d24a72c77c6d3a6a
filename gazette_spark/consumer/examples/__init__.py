"""Example applications. Each runs on both hosts and is also a test of them."""
