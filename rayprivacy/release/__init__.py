"""The gate: the only place that draws privacy noise and turns Private into Released."""
