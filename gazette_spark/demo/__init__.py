"""Streams journals into a Delta table while the query is killed, without losing an event.

- ``run``    the program: sets everything up, decides when to kill the query and when to stop, and reports
- ``query``  the process that is killed: Spark, the source and the sink, as a user would write them
- ``events`` JSON events of a web shop, and the threads that append them
- ``proof``  compares every appended event with the table
"""
