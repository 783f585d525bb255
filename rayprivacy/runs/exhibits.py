"""Charts and tables that a method adds to the report of a run: plain numbers, drawn by the page that shows them.

Each is internal, and so on no page that is made to be shared, unless the method says that it is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis.

    Attributes:
        name: of its picture.
        title: what it shows.
        across, up: what the axes are.
        series: points of each line, by name, from left to right.
        internal: whether it was measured on private text; False says that all of it is public or was released.
    """

    name: str
    title: str
    across: str
    up: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    internal: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        title: what it shows.
        columns: their names.
        rows: cells, one for each column.
        internal: whether it was measured on private text, or quotes it; False as for a chart.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    internal: bool = True


def exhibits_json(exhibits: Sequence[Chart | Table]) -> dict[str, Any]:
    """Charts and tables as JSON values, for metrics.json."""
    charts = [asdict(each) for each in exhibits if isinstance(each, Chart)]
    tables = [asdict(each) for each in exhibits if isinstance(each, Table)]
    return {"charts": charts, "tables": tables}
