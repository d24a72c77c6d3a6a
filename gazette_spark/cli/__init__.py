"""The command ``gazette-spark``: text for people, JSON for programs, and an exit code for both.

Exit codes: 0 done; 1 refused or failed, with a line on stderr that says why; 2 wrong usage; 130 interrupted.
The codes of ``lag show`` and ``verify`` are verdicts.
"""
