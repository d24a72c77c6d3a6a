"""Framings and formats: convert bytes of journals to records, records to columns, and values to records.

===================== ==========================================================================
``registry``          all framings and formats, in two tables: begin here
``framing``           what a framing does, and the block of records that it passes on
``lines`` ``fixed``   the framings; each finds records and writes them
``csv`` ``raw``
``encode``            values of a DataFrame to the bytes of appends
``rows``              what all formats share: modes, malformed records, metadata columns
``json``              JSON by the fastest parser that can be trusted with a block
``native``            JSON by a library in Rust, where it was built
``library``           that library
``json_records``      a JSON record to a Python object
``json_reference``    JSON of any kind, by those objects
``json_infer``        the schema of JSON records
``csv_parser``        CSV
``protobuf``          protobuf messages
``values``            texts to values: decimals, bytes, dates; by column and one by one
``timestamps``        dates and times, by Spark's rules or a pattern
``variant``           JSON to VARIANT
``metadata``          the columns of a record's origin
``arrays``            Arrow arrays without pandas
===================== ==========================================================================
"""
