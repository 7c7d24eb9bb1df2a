"""Token ids as flat arrays: nothing is wrapped, cast or lost on the way in."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.requests import Requests, Tokens
from schemas.errors import InputError
from schemas.tables import TRACE

ragged = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=6)


@given(ragged)
def test_lists_survive(lists):
    tokens = Tokens.of(lists)
    assert [tokens[i].tolist() for i in range(len(tokens))] == lists
    assert tokens.lengths.tolist() == [len(s) for s in lists]
    assert tokens.flat.dtype == np.int32 and tokens.offsets.dtype == np.int64


@given(ragged, st.integers(0, 6))
def test_columns_survive_in_any_chunking(lists, cut):
    chunks = [pa.array(part, pa.list_(pa.int32())) for part in (lists[:cut], lists[cut:])]
    tokens = Tokens.of_column(pa.chunked_array(chunks))
    assert [tokens[i].tolist() for i in range(len(tokens))] == lists


def test_null_is_an_empty_sequence():
    tokens = Tokens.of_column(pa.chunked_array([pa.array([[1], None, [], [2, 3]], pa.list_(pa.int32()))]))
    assert tokens.offsets.tolist() == [0, 1, 1, 1, 3]


def test_a_slice_of_a_column_starts_where_it_says():
    column = pa.chunked_array([pa.array([[9, 9], [1], None, [2, 3]], pa.list_(pa.int32()))]).slice(1)
    assert Tokens.of_column(column).flat.tolist() == [1, 2, 3]


@pytest.mark.parametrize("bad", [-1, 2**31, 5279552648203111001, 1.5, "7", None, 2**70])
def test_what_is_no_id_is_refused_with_its_place(bad):
    with pytest.raises(InputError, match="sequence 1, position 2") as error:
        Tokens.of([[1], [1, 5, bad]])
    assert repr(bad) in str(error.value)


def test_from_lists():
    requests = Requests.from_lists([[1, 2], [3]], [[4], []], [[5], []])
    assert len(requests) == 2
    assert requests.meta.schema.equals(pa.schema([f for f in TRACE if not f.name.endswith("_token_ids")]))
    assert requests.meta.column("output_tokens").to_pylist() == [1, 0]
    with pytest.raises(InputError, match="2 prompts, 1 outputs, 2 tails"):
        Requests.from_lists([[1], [2]], [[3]])


def test_take_keeps_rows_together():
    requests = Requests.from_lists([[1], [2, 2], [3]], [[4], [], [6, 6]], [[], [8], []])
    taken = requests.take([2, 0, 2])
    assert [taken.prompts[i].tolist() for i in range(3)] == [[3], [1], [3]]
    assert [taken.outputs[i].tolist() for i in range(3)] == [[6, 6], [4], [6, 6]]
    assert taken.meta.column("request_id").to_pylist() == ["2", "0", "2"]
    assert len(requests.take([])) == 0
    assert requests.take([1]).tails[0].tolist() == [8]


def test_a_canonical_trace():
    rows = [
        {"request_id": "a", "sample": 0, "prompt_token_ids": [1, 2], "prompt_tokens": 2},
        {"request_id": "b", "sample": 0, "prompt_token_ids": [3], "output_token_ids": [4, 5], "prompt_tokens": 1}
        | {"output_tokens": 2},
    ]
    requests = Requests.from_table(pa.Table.from_pylist(rows, schema=TRACE))
    assert requests.outputs.lengths.tolist() == [0, 2]
    assert requests.meta.column("output_tokens").to_pylist() == [None, 2]
    assert not {"prompt_token_ids", "output_token_ids", "tail_token_ids"} & set(requests.meta.column_names)
