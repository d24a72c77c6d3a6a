"""Data files of a Delta table, written by the task that read the rows: no row goes through the JVM."""
