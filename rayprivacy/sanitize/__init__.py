"""Token-level mechanisms: text is rewritten word by word at its owner's side, by keyed coins and a public table."""
