"""Admission rules: one file each. `rule_for` finds the rule of an account.

Releases are adaptive: which mechanism comes next depends on earlier answers. A *filter* is a rule that may stop such a
sequence at any time and still keep the cap (epsilon*, delta*), whatever the charges were chosen by. The account's claim
is its cap; what has been "spent so far" is a diagnostic.
"""
