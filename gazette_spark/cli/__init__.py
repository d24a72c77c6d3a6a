"""Implements the command ``gazette-spark``, with text for people, JSON for programs, and exit codes for both.

Exit codes: 0 done; 1 refused or failed, with the reason on stderr; 2 wrong usage; 130 interrupted. The codes
of ``lag show`` and ``verify`` are verdicts.
"""
