"""A broker's bytes on disk: the spool, the log of commits, fragments and the stores they are persisted to."""
