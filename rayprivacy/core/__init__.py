"""Values every layer shares: units, budgets, sealed artifacts, errors, keys. Knows neither Ray nor torch."""
