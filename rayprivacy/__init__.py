"""rayprivacy: private text in, shareable text out, with one differential-privacy ledger behind it."""

__version__ = "0.2.0"
