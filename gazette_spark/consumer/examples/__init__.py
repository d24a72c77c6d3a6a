"""Applications to begin with: each runs on both hosts, and is a test of them."""
