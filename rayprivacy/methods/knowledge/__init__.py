"""Knowledge: what many users' texts agree on, released by two thresholded counts, and what is written from it."""
