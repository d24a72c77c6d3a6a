"""Data files of Delta and Iceberg tables, written by tasks: no row goes through the JVM."""
