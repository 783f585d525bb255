"""`DPTorchTrainer`: the user's own Hugging Face model, trained with user-level DP-SGD on Ray Train.

It is a method that no recipe file can name: its corpus is a Ray Dataset and its loss may be a function of the user's.
So account, charges, resuming and certificate are those of every other run (`rayprivacy.runs.drive`).
"""
