"""Can a run that claims an epsilon be caught leaking? Attacks, and what their success says about the claim."""
