"""The ledger of what a private corpus has paid: accounts, charges, write-once outputs, certificates."""
