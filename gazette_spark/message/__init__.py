"""Gazette's messages: UUIDs, acknowledgements and transactions inside journals.

A producer stamps each message with a UUID that holds its producer id, a clock and flags. Readers use these to
drop repeated messages and to hold back messages of a transaction until its acknowledgement arrives.
"""
