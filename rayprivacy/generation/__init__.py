"""Right of the gate: the student learns from released votes, and speaks."""
