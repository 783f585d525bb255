"""How the utterance model is asked; imports neither torch nor Ray."""


def prompt(tree: str) -> str:
    r"""What stands in front of the utterance of a tree.

    >>> prompt("(Confirm)")
    'say (Confirm)\n'
    """
    return f"say {tree}\n"
