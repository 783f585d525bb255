"""Kinds of teachers: what is trained on one shard, and how it answers. One small file each; a recipe chooses."""
