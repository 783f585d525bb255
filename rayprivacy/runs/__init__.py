"""What every run has, whatever its method: recipe, plan, run directory, driver, certificate, measurements, audits."""
