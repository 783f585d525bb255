"""The one book of what the private corpus has paid: accounts, charges, write-once outputs, certificates."""
