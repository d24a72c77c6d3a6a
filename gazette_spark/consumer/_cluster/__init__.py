"""Makes this process a member of a consumer application's cluster, which is Gazette's own, in Etcd.

- :mod:`~gazette_spark.consumer._cluster.etcd` calls Etcd.
- :mod:`~gazette_spark.consumer._cluster.mirror` follows the application's keys.
- :mod:`~gazette_spark.consumer._cluster.allocator` decides who runs which shard. It is pure.
- :mod:`~gazette_spark.consumer._cluster.member` announces this process as long as it has a lease.
- :mod:`~gazette_spark.consumer._cluster.host` runs the shards that are assigned to this process.
"""
