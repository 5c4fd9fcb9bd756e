"""The job file: read, checked with the line of each key, and built into jobs."""
