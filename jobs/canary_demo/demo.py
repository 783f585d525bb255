"""Does a generator repeat what only a few people wrote? The same one, with and without differential privacy.

    python jobs/canary_demo/demo.py --out runs/canary_demo

Secrets (names, addresses, phone numbers, e-mail addresses, number plates) are planted in chat, each as rows of 1, 10
or 100 users of their own. A generator is trained twice on it: with epsilon 8, and with next to no noise and clipping,
which its certificate calls meaningless. The recipe's `audit` block plants them and looks for them at the end: how the
model ranks a planted one among other candidates of its kind (rank 1 of 1,000: it knows it), and whether the synthetic
text holds it word for word.

A secret of 100 users is not protected by epsilon 8: as many users may well teach a model something. What the table
shows is that little is left of it where the noise is meant for one user.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rayprivacy as rp

RECIPE = Path(__file__).parent.parent / "generator" / "chat.yaml"
SHARED = ["privacy.composition=rdp", "evaluation={users: 20}"]
ARMS = {
    "without": ["privacy.epsilon=1e9", "training.noise_multiplier=0.001", "training.clipping_norm=10"],
    "with": [],
}


def main() -> None:
    """The command line."""
    arguments = _arguments()
    print(as_table(demo(arguments.out, tuple(arguments.repetitions), arguments.override)))


def demo(out: Path, repetitions: tuple[int, ...] = (1, 10, 100), overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Two runs with planted secrets, each audited; what `side_by_side` says, which is also written to canaries.json.

    Args:
        out: folder of both runs; a demo that was killed goes on there.
        repetitions: users who carry a secret.
        overrides: `key=value` settings of both runs, over those of jobs/generator/chat.yaml.
    """
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, own in ARMS.items():
        run = out / name
        planted = f"audit.canaries.repetitions={list(repetitions)}"
        places = [f"privacy.key={out}/key", f"privacy.ledger=sqlite:///{run}.db", f"privacy.account=canaries-{name}"]
        recipe = rp.load_recipe(RECIPE, [*SHARED, planted, *places, *overrides, *own])
        result = rp.run(recipe, out=run)
        found[name] = json.loads((result.path / "audit.json").read_text())["canaries"]
    figures = side_by_side(found)
    (out / "canaries.json").write_text(json.dumps(figures, indent=1))
    return figures


def side_by_side(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One entry for each secret: its kind and users, and its rank and leak in both runs."""
    return [
        {
            "kind": without["kind"],
            "users": without["users"],
            "candidates": without["candidates"],
            "without": {"rank": without["rank"], "verbatim": without["verbatim"]},
            "with": {"rank": own["rank"], "verbatim": own["verbatim"]},
        }
        for without, own in zip(found["without"], found["with"], strict=True)
    ]


def as_table(figures: list[dict[str, Any]]) -> str:
    """The same as text, in Markdown."""
    lines = [
        "| secret | users | without DP: rank | in the text | with DP: rank | in the text |",
        "|---|---:|---:|---|---:|---|",
    ]
    for each in figures:
        cells = [each["kind"], str(each["users"])]
        for arm in ("without", "with"):
            cells += [f"{each[arm]['rank']:g} of {each['candidates']}", "yes" if each[arm]["verbatim"] else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/canary_demo"))
    parser.add_argument("--repetitions", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("-o", dest="override", action="append", default=[], help="one more setting of both runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
