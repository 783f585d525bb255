"""One account while the book is replayed: its sums by state, compared with the balance that each entry claims."""

from rayprivacy.ledger.audit import strict
from rayprivacy.ledger.audit.events import read_leaves
from rayprivacy.ledger.audit.plan import PlanRule, read_plan
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.rules import Rule, SumRule, Vector
from rayprivacy.ledger.audit.terms import METRIC, Terms, read_meaning

COUNTED = ("reserved", "started", "committed")


class AccountBook:
    """The sums of one account, moved by its charges.

    Attributes:
        terms: what the account promised.
        rule: how its costs are checked and limited.
        sums: by state, exact integers.
    """

    def __init__(self, terms: Terms, where: str) -> None:
        self.terms = terms
        self.rule: Rule = PlanRule() if terms.composition == "pld" else SumRule(terms, where)
        self.sums = {state: [0] * self.rule.size for state in COUNTED}
        self._has_charges = False

    def say(self, row: Row, where: str) -> None:
        """Take what the account says, from now on, of who or what it protects."""
        self.terms = read_meaning(self.terms, row, where)

    @property
    def live(self) -> Vector:
        """What counts against the cap: reserved, started and committed together."""
        return tuple(map(sum, zip(*self.sums.values(), strict=True)))

    def register_plan(self, row: Row, where: str) -> None:
        """Take the plan of a pld account: once, before anything is charged."""
        if self.terms.composition != "pld" or self.rule.size or self._has_charges:
            strict.fail(where, "registers a plan that the account cannot take")
        self.rule = read_plan(row["detail"], self.terms, where)
        self.sums = {state: [0] * self.rule.size for state in COUNTED}

    def reserve(self, row: Row, where: str) -> Vector:
        """Check the cost of a new charge, count it, and require that the cap holds with it."""
        cost = tuple(strict.amounts(strict.parse(row["cost"], where, "cost"), where, "cost"))
        self.rule.check_cost(row["events"], cost, where)
        self._check_words(row["events"], where)
        self._has_charges = True
        self.move(cost, "", "reserved")
        if not self.rule.fits(self.live):
            strict.fail(where, f"exceeds the cap of account {self.terms.name!r}")
        return cost

    def move(self, cost: Vector, before: str, after: str) -> None:
        """Take a cost from one state to another; what is cancelled, or not reserved yet, is in none."""
        for state, sign in ((before, -1), (after, 1)):
            if state in self.sums:
                self.sums[state] = [have + sign * part for have, part in zip(self.sums[state], cost, strict=True)]

    def check_balance(self, row: Row, where: str) -> None:
        """Compare the entry's balance with the sums."""
        claimed = strict.mapping(strict.parse(row["balance"], where, "balance"), set(COUNTED), where, "balance")
        if any(strict.amounts(claimed[state], where, "balance") != self.sums[state] for state in COUNTED):
            strict.fail(where, "claims a balance that is not the sum of its charges")

    def _check_words(self, events: str, where: str) -> None:
        """A metric-local account adds epsilons of one list of protected words, and says which before it is charged."""
        if self.terms.kind == METRIC:
            lists = {leaf.facts.get("sensitive", "") for leaf, _ in read_leaves(events, where)}
            if (lists - {""} or {""}) != {self.terms.meaning.get("protected")}:
                strict.fail(where, f"protects other words than account {self.terms.name!r}")
