"""What Heed served since the process began, and what it handed back to PyTorch."""

import dataclasses

from heed import libraries
from heed.libraries import check


@dataclasses.dataclass(frozen=True)
class Row:
    """Calls of one problem. `workload` is spelled as the command line of Heed does, "" where the tensors have no form of attention.

    variant, origin   the kernel that served them and the file its program is from; "" for calls that were handed back, "none" and "" where
                      there was nothing to compute
    reason            why this variant, or why not
    precision         the mode that quantised Q, K and V; "" where they were taken as they are
    seconds           that a CPU's threads took together with the caller; 0 for a GPU, whose work goes on after a call returns
    """

    served: bool
    workload: str
    variant: str
    origin: str
    reason: str
    precision: str
    calls: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Rows by number of calls. `str()` is a table; `as_dict()` is for json.dumps."""

    rows: tuple

    @property
    def served(self):
        """Calls that Heed ran."""
        return sum(row.calls for row in self.rows if row.served)

    @property
    def handed_back(self):
        """Calls that went to PyTorch."""
        return sum(row.calls for row in self.rows if not row.served)

    def as_dict(self):
        return {"served": self.served, "handed_back": self.handed_back, "rows": [dataclasses.asdict(row) for row in self.rows]}

    def __str__(self):
        lines = [f"{self.served} calls served by Heed, {self.handed_back} handed back to PyTorch"]
        for title, served in (("served", True), ("handed back", False)):
            rows = [row for row in self.rows if row.served == served]
            if not rows:
                continue
            width = max(len(row.workload) for row in rows)
            lines += ["", f"{title + ':':<{width + 2}}  {'calls':>9}  {'ms':>10}  " + ("variant" if served else "because of")]
            for row in rows:
                time = f"{1e3 * row.seconds:10.3f}" if row.seconds else " " * 10
                lines.append(f"  {row.workload:<{width}}  {row.calls:>9}  {time}  {_named(row) if served else row.reason}")
        return "\n".join(lines)


def _named(row):
    return f"{row.variant}, {row.precision}" if row.precision else row.variant


def count_handed_back(workload, reason):
    """Counts a call that this package computed by PyTorch's operators because of `reason`, past the operators that count by themselves."""
    libraries.operator_library().heed_torch_count(False, workload.encode(), reason.encode())


def report():
    """A Report of all calls since the process began or `reset_report` was called, of every thread."""
    rows = []

    @libraries.VISIT
    def visit(_, served, workload, variant, origin, reason, precision, calls, nanoseconds):
        texts = (text.decode() for text in (workload, variant, origin, reason, precision))
        rows.append(Row(bool(served), *texts, calls, nanoseconds / 1e9))

    check(libraries.operator_library().heed_torch_report(None, visit))
    return Report(tuple(sorted(rows, key=lambda row: (-row.calls, row.workload))))


def reset_report():
    """Counts from zero."""
    check(libraries.operator_library().heed_torch_reset_counts())
