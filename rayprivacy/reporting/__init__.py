"""The report of a run on one page: reads what a finished run left behind, and computes nothing on private data."""
