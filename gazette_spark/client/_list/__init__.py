"""Listings of journals, once and watched; changes of their specs."""
