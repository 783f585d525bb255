"""What methods have in common, as blocks of their plans and runs: pretraining, DP-SGD, writing and matching.

Each block has a light file (`*_plan`: recipe keys, stages, charges; no torch, no Ray) and one that does the work.
"""
