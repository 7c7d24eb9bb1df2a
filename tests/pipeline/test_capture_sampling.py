"""A captured trace says how each request was sampled, its seed too, so that a replay samples the same."""

import json

import pytest

from pipeline.capture import _sampling


@pytest.mark.parametrize(
    ("text", "overrides", "seeded"),
    [
        (None, {}, False),
        ('{"temperature": 0.7}', {}, True),
        ('{"temperature": 0.7}', {"temperature": 0}, False),
        ('{"temperature": 0.7, "seed": 9}', {}, 9),
        ('{"temperature": 0.7, "seed": 9}', {"seed": 4}, 4),
    ],
)
def test_a_seed_is_kept_or_derived(text, overrides, seeded):
    from replay.live.settings import derived_seed

    said = json.loads(_sampling(text, 5, overrides, 3, "r1"))
    assert said.get("seed") == (derived_seed(3, "r1") if seeded is True else seeded or None)
    assert said["max_tokens"] == 5
