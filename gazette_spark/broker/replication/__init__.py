"""Replication between brokers: the rules of a replica, the pipeline to other replicas, proxied calls."""
