"""Knowledge: what many users' texts agree on, voted by each user alone: names, then answers about them."""
