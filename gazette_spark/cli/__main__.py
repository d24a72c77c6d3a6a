"""Runs the command as ``python -m gazette_spark.cli``, if its script is not on PATH."""

from gazette_spark.cli.main import main

if __name__ == "__main__":
    main(prog_name="gazette-spark")
