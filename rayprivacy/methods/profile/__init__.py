"""A profile: what is in a private corpus before anything is trained, in noisy numbers."""
