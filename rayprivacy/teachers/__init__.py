"""Teachers: thousands of small adapters trained on cached features, whose votes leave an actor only summed."""
