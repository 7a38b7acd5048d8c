"""Pages of the admin API are written a batch at a time, and are the JSON of all their rows."""

import json
from itertools import pairwise

import trio

from maxam.api.answers import Rows


def test_rows_stand_beside_other_rows_and_fields() -> None:
    """However the rows came, and whether or not there is anything beside them, the answer is one object."""
    rows, others = Rows("rows"), Rows("others")
    assert json.loads(bytes(rows.within().body)) == {"rows": []}
    rows.add([{"a": 1}, {"a": 2}])
    rows.add([])
    rows.add([{"a": 3}])
    others.add([{"b": '"]}'}])
    answer = rows.within(others, next=None, more={"c": []})
    assert json.loads(bytes(answer.body)) == {
        "rows": [{"a": 1}, {"a": 2}, {"a": 3}],
        "others": [{"b": '"]}'}],
        "next": None,
        "more": {"c": []},
    }
    assert json.loads(bytes(rows.answer("x").body))["next"] == "x"


def test_long_lists_let_other_tasks_run() -> None:
    """Between two batches of a list that has no pages the event loop runs other tasks."""
    made: list[int] = []
    seen: list[int] = []

    def row(number: int) -> dict[str, object]:
        made.append(number)
        return {"number": number}

    async def others() -> None:
        while True:
            seen.append(len(made))
            await trio.lowlevel.checkpoint()

    rows = Rows("rows")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await rows.add_all(range(40), 2, row)
            nursery.cancel_scope.cancel()
        assert json.loads(bytes(rows.within().body)) == {"rows": [{"number": number} for number in range(40)]}

    trio.run(main)
    assert made == list(range(40))
    assert max(after - before for before, after in pairwise(seen)) <= 4  # each goes once a round, in either order
