"""Many proposers on the first page: what is said of each must not push the chart out of sight."""

import pytest
from logged_runs import Request, Run, Step, commit

from pipeline.warehouse import Warehouse


@pytest.mark.parametrize(("proposers", "folded"), [(4, 0), (5, 1), (9, 5)])
def test_notes_past_the_first_four_are_folded(proposers, folded, open_app, tmp_path):
    warehouse = Warehouse(tmp_path / "house")
    steps = [Step(4, 3), *[Step(0, 0, miss="no_match")] * 9]
    commit(warehouse, "many", Run({f"p{i}": [Request(steps)] for i in range(proposers)}))
    app = open_app(warehouse.root).run()
    assert not app.exception
    said = [c.value for c in app.caption if "of the steps; with the misses" in c.value]
    assert len(said) == proposers  # none is left out
    more = [e for e in app.expander if "such note" in e.label]
    assert [e.label for e in more] == ([f"{folded} more such note{'s' * (folded > 1)}"] if folded else [])
    assert sum(len(e.caption) for e in more) == folded
