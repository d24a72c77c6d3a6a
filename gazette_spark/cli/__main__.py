"""``python -m gazette_spark.cli``: the command, where its script is not on PATH."""

from gazette_spark.cli.main import main

if __name__ == "__main__":
    main(prog_name="gazette-spark")
