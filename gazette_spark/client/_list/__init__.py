"""Lists and watches journals, and changes their specs."""
