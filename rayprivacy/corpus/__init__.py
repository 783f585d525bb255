"""The private corpus: read it, name its users, bound what each contributes, and spread the users over shards.

Start with `settings` (what a recipe says), then follow one record: `sources` -> `users` -> `layout` -> `shards`.
`verify` checks the files again from nothing but the files and the key. `public` is the public side.
"""
