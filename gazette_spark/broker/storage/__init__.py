"""Stores a broker's bytes on disk: spools, logs of commits, fragments and their stores."""
