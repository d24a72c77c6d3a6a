"""Replicates journals between brokers: a replica's rules, the pipeline to other replicas, proxied calls."""
