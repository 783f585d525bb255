"""Nothing that is derived from private values enters the name of a charge: every function of the package is read.

Private is what is revealed, what is annotated as sums, votes or `Private`, and what comes from a function that returns
such a value; and so is what is computed from it, up to a release. A charge is named by the arguments of NAMING, of the
functions that call `input_digest`, and by the keywords of a release.
"""

import ast
from pathlib import Path

import rayprivacy

PACKAGE = Path(rayprivacy.__file__).parent
NAMING = {"input_digest", "Asked", "asked", "reserve", "FileRelease"}
RELEASES = ("release_votes", "release_histogram", "release_figures", "release_counts", "release_file")
NAMES_OF_A_RELEASE = {"question", "asked", "stage", "rung", "chunk"}
GIVING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For)
SECRET = ("Private", "Votes", "Sums", "NDArray", "ndarray")


def _called(node):
    """The bare name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_secret(annotation):
    return annotation is not None and any(word in ast.unparse(annotation) for word in SECRET)


class _Package:
    """What the functions of some sources are known for."""

    def __init__(self, sources):
        nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
        self.functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.secrets = {each.name for each in self.functions if "Private" in ast.unparse(each.returns or ast.Tuple([]))}
        self.naming = NAMING | {
            each.name for each in self.functions if any(_called(node) == "input_digest" for node in ast.walk(each))
        } - {"of"}

    def breaches(self):
        """Every call that names a charge by something private."""
        for function in self.functions:
            private = self._private_names(function)
            for node in ast.walk(function):
                if any(self._holds(each, private) for each in self._names_given(node)):
                    yield f"{function.name}: {ast.unparse(node)}"

    def _names_given(self, node):
        """The arguments of a call that become part of a charge's name."""
        if not isinstance(node, ast.Call):
            return []
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if _called(node) in self.naming or (_called(node) == "of" and ast.unparse(node.func) == "StepRelease.of"):
            return given
        if _called(node) in RELEASES:
            return [keyword.value for keyword in node.keywords if keyword.arg in NAMES_OF_A_RELEASE]
        return []

    def _private_names(self, function):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        private = {each.arg for each in arguments if _is_secret(each.annotation)}
        giving = [node for node in ast.walk(function) if isinstance(node, GIVING)]
        while more := {name for node in giving for name in self._made_private(node, private)} - private:
            private |= more
        return private

    def _made_private(self, node, private):
        """The names that a statement gives a private value."""
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
                targets = [target]
            case ast.NamedExpr(target=target, value=value) | ast.For(target=target, iter=value):
                targets = [target]
            case _:
                return []
        if not self._holds(value, private):
            return []
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]

    def _holds(self, expression, private):
        """Whether a private value is part of an expression, but for what has been released."""
        if _called(expression) in RELEASES:
            return False
        if _called(expression) in {"reveal"} | self.secrets:
            return True
        if isinstance(expression, ast.Name):
            return expression.id in private
        return any(self._holds(child, private) for child in ast.iter_child_nodes(expression))


def test_no_charge_of_the_package_is_named_by_an_answer():
    package = _Package([path.read_text() for path in PACKAGE.rglob("*.py")])
    assert {"_reserved", "file_inputs"} < package.naming
    assert {"label_sums", "shape_votes", "vote"} < package.secrets
    assert list(package.breaches()) == []


FOUND = [
    """
def _release(self, kind, mechanism, sums: Votes, stage):
    digest = input_digest(self.key, kind, stage, digest_array(sums), digest_json(mechanism.parameters))
""",
    """
def release(self, sums):
    seen = sums.reveal()
    for row in seen:
        self.ledger.reserve(self.account, "run", digest_array(row), EVENT)
""",
    """
def _reserved(self, stage):
    return input_digest(self.key, "votes", stage)

def release(self, sums: Private):
    size = sums.shape
    return self._reserved(stage=f"votes {size}")
""",
    """
def votes_of(shards) -> Private[Sums]:
    return Private(count(shards))

def run(context):
    votes = votes_of(context.shards)
    question = digest_json([1, digest_array(votes)])
    return context.release_histogram("votes", MECHANISM, votes, question=question)
""",
    """
def run(context, rows: Private):
    context.release_file("a", EVENT, "b", write, question=str(rows))
""",
]
RELEASED = """
def run(context, sums: Private):
    noisy = context.release_votes("votes", MECHANISM, sums, MANIFEST, question=Q).value
    return context.release_votes("votes", MECHANISM, sums, MANIFEST, question=digest_array(noisy))
"""


def test_a_charge_that_is_named_by_an_answer_is_found_and_what_was_released_may_name_one():
    assert [len(list(_Package([source]).breaches())) for source in [*FOUND, RELEASED]] == [1] * len(FOUND) + [0]
