"""What a mechanism costs: events and their codec, the Gaussian curve in closed form, accountants, calibration."""
