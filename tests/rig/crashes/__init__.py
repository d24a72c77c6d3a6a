"""The crash harness: random schedules of crashes, kills, zombies and RESTOREs against a real Delta table.

- ``points``       where a query can be made to die
- ``schedules``    steps, and how a schedule is drawn from a seed
- ``sinks``        the kinds of sink under test
- ``backfills``    a backfill that dies
- ``oracles``      the expected contents of their tables
- ``scenario``     carries out steps, and checks the table after each
- ``children``     child processes that are ready to run the query and be killed
- ``child``        what such a process runs
- ``two_writers``  two of them that write one table at once
- ``report``       what came of many schedules
- ``__main__``     the command: ``python -m tests.rig.crashes --schedules 10 --seed 1``
"""
