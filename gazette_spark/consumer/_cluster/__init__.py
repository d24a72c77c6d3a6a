"""Membership in the cluster of a consumer application that several processes run: Gazette's own, in Etcd.

- :mod:`~gazette_spark.consumer._cluster.etcd` calls Etcd.
- :mod:`~gazette_spark.consumer._cluster.mirror` follows the application's keys.
- :mod:`~gazette_spark.consumer._cluster.allocator` decides who runs which shard. It is pure.
- :mod:`~gazette_spark.consumer._cluster.member` announces this process as long as it has a lease.
- :mod:`~gazette_spark.consumer._cluster.host` runs the shards that are assigned to this process.
"""
