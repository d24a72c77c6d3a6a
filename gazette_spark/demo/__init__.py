"""The demo: journals stream into a Delta table while the query is killed, and nothing is lost.

- ``events``   believable JSON events, and what was appended of them
- ``writers``  threads that append events at a steady rate
- ``query``    the process that gets killed: Spark, the source and the sink, as a user would write them
- ``child``    starts that process, kills it with all its children, shows its log
- ``watch``    what the table and the checkpoint on disk say about the query, read without Spark
- ``plan``     decides from there when to kill, when to stop writing, when to give up
- ``proof``    compares every appended event with the table
- ``scenario`` looks, decides, acts
- ``run``      sets everything up and reports
"""
