"""Appends on several brokers: the rules of a replica, the pipeline to the others, calls passed on to them."""
