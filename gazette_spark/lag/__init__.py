"""The lag of a query, and whether it is getting worse: Burrow's verdicts, which need no thresholds.

``rules`` judges windows of commits, ``history`` keeps them, ``evaluate`` judges on request, ``report`` shows
verdicts as Burrow's JSON, and ``recorded`` and ``replay`` read windows and requests back, so that an incident
can be replayed. All of it is pure: the
clock is an argument, and nothing here reads a journal, a table or a file.

The words *cluster*, *group*, *topic* and *partition* are Burrow's, for its JSON has them: a cluster of
brokers, a query, a prefix or selector of journals, and one journal.
"""
