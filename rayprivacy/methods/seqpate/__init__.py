"""SeqPATE: many teachers, each trained on one shard of private text, vote on public sentences, and a student learns."""
