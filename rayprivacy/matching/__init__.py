"""Makes released text follow the corpus in topics and lengths, by one noisy vote of its users."""
