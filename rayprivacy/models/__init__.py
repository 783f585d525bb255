"""Public models: loading a base, packing text into rows, trunk features, head adapters. No Ray."""
