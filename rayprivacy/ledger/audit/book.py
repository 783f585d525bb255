"""One account while the book is replayed: its sums by state, compared with the balance that each entry claims."""

from rayprivacy.ledger.audit import strict
from rayprivacy.ledger.audit.events import read_leaves
from rayprivacy.ledger.audit.plan import PlanRule, read_plan
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.rules import Rule, SumRule, Vector, first_schema_cost
from rayprivacy.ledger.audit.terms import Terms, read_meaning

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
        self._has_balance = self._has_charges = False
        self._first_schema: dict[str, Vector] = {}

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
        if (row["cost"] == "") != (row["balance"] == ""):
            strict.fail(where, "records a cost without a balance, or a balance without a cost")
        if row["cost"]:
            cost = tuple(strict.amounts(strict.parse(row["cost"], where, "cost"), where, "cost"))
            self.rule.check_cost(row["events"], cost, where)
        else:
            cost = self._first_schema_cost(row["events"], where)
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
        """Compare the entry's balance with the sums; once an account has one, every later entry has."""
        if row["balance"] == "":
            if self._has_balance or row["rung"]:
                strict.fail(where, "lacks the balance of its account")
            return
        self._has_balance = True
        claimed = strict.mapping(strict.parse(row["balance"], where, "balance"), set(COUNTED), where, "balance")
        if any(strict.amounts(claimed[state], where, "balance") != self.sums[state] for state in COUNTED):
            strict.fail(where, "claims a balance that is not the sum of its charges")

    def _check_words(self, events: str, where: str) -> None:
        """A metric-local account adds epsilons of one list of protected words, since it says which."""
        wanted = self.terms.meaning.get("protected")
        if wanted is not None:
            lists = {leaf.facts.get("sensitive", "") for leaf, _ in read_leaves(events, where)}
            if (lists - {""} or {""}) != {wanted}:
                strict.fail(where, f"protects other words than account {self.terms.name!r}")

    def _first_schema_cost(self, events: str, where: str) -> Vector:
        if self.terms.composition != "gdp":
            strict.fail(where, "records no cost")
        if events not in self._first_schema:
            self._first_schema[events] = first_schema_cost(read_leaves(events, where), where)
        return self._first_schema[events]
