"""How many recorded cases a run has compared."""

from __future__ import annotations

from typing import Any

from tests.engine.drafters.heads import cases


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if cases.COMPARED:
        total = sum(cases.COMPARED.values())
        terminalreporter.write_line(f"head fixtures: {len(cases.COMPARED)} recordings compared, {total} comparisons, from {cases.FOLDER}")
        for case, n in sorted(cases.COMPARED.items()):
            terminalreporter.write_line(f"  {case}: {n}")
