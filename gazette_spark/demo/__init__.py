"""The demo: journals stream into a Delta table while the query is killed, and nothing is lost.

- ``events``   believable JSON events, and the record of appended ones
- ``writers``  threads that append events at a steady rate
- ``query``    the process that gets killed: Spark, the source and the sink, as a user would write them
- ``child``    starts that process, kills it with all its children, shows its log
- ``watch``    the query's state from the table and the checkpoint on disk, read without Spark
- ``plan``     decides from there when to kill, when to stop writing, when to give up
- ``proof``    compares every appended event with the table
- ``scenario`` looks, decides, acts
- ``run``      sets everything up and reports
"""
