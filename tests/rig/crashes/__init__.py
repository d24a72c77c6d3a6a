"""The crash harness: random schedules of crashes, kills, zombies and RESTOREs against a real Delta table.

- ``points``     the points at which a query can be killed
- ``schedules``  steps, and how a schedule is drawn from a seed
- ``trial``      carries steps out, and asks the oracle after each
- ``drivers``    child processes that are ready to run the query and be killed
- ``driver``     the program of such a process
- ``contest``    two of them that write one table at once
- ``report``     the results of many schedules
- ``__main__``   the command: ``python -m tests.rig.crashes --schedules 10 --seed 1``
"""
