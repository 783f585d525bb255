"""Domain-private training: redacted text in ordinary steps, full text in noisy ones, as a public schedule says."""
