"""Combinations: with an empty proposer the proposer alone; else against vLLM's own proposers, combined here again."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import records
from upstream import FAR, Suffix, logged, ngram, serve

from replay.recorded.engine import replay_recorded
from replay.recorded.exactness import label
from replay.requests import Requests
from schemas.config import parse
from schemas.errors import InputError
from schemas.speculative import effective

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_max_tree_depth": 8}
DRAFT = Path(__file__).parents[3] / "examples" / "models" / "draft"
COLUMNS = "request step drafted filler accepted overrun miss_reason".split()

traces = st.lists(records(), min_size=1, max_size=4)


def replayed(trace, config, **more):
    return replay_recorded(Requests.from_lists(*zip(*trace, strict=True)), config, **more)


def combination(*of, **more):
    return {"method": "hypothetical", "of": list(of)} | more


def assert_equal(one, other):
    for name in COLUMNS:
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name


@settings(max_examples=40)
@given(traces, st.sampled_from([NGRAM, SUFFIX]), st.sampled_from(["first", "longest"]), st.booleans(), st.booleans())
def test_with_an_empty_proposer_it_is_the_proposer(trace, solo, combine, behind, limited):
    limit = max(len(prompt) + len(output) for prompt, output, _ in trace) + 2 if limited else None
    of = ({}, solo) if behind else (solo, {})
    combined = replayed(trace, combination(*of, combine=combine), max_model_len=limit)
    assert_equal(combined, replayed(trace, solo, max_model_len=limit))


def test_an_empty_proposer_alone_proposes_nothing():
    log = replayed([([1, 2, 1], [2, 1, 2, 1], [])], combination({}))
    assert len(log) == 3 and log.drafted.sum() == 0


def oracle(find, trace, of, combine="first", adaptive=False, cool_down=0):
    """Rows per request: vLLM's own proposers, asked at every step, and the rules of a combination."""
    k = max(config["num_speculative_tokens"] for config in of)
    suffix = {i: Suffix(effective(config)) for i, config in enumerate(of) if config["method"] == "suffix"}
    out = []
    for number, record in enumerate(trace):
        asked = [
            suffix[i].of(number, record[0])
            if i in suffix
            else ngram(find, c["prompt_lookup_min"], c["prompt_lookup_max"], c["num_speculative_tokens"])
            for i, c in enumerate(of)
        ]
        state = {"last": 0, "length": k, "wait": 0}

        def propose(tokens, sampled, asked=asked, state=state):
            found = [list(one(tokens, sampled)) for one in asked]
            if state["last"]:
                accepted = len(sampled) - 1
                grow = accepted == state["last"]
                state["length"] = min(k, state["length"] + 2) if grow else max(1, state["length"] - 1)
                state["wait"] = cool_down if accepted == 0 else 0
            elif state["wait"]:
                state["wait"] -= 1
            if state["wait"]:
                state["last"] = 0
                return []
            found = [ids for ids in found if ids] or [[]]
            best = found[0] if combine == "first" else max(found, key=len)
            best = best[: state["length"]] if adaptive else best
            state["last"] = len(best)
            return best

        out.append(serve(*record, k, propose, FAR))
    return out


@settings(max_examples=60)
@given(
    traces,
    st.permutations([NGRAM, SUFFIX]),
    st.sampled_from(["first", "longest"]),
    st.booleans(),
    st.sampled_from([0, 1, 3]),
)
def test_every_step(find, trace, of, combine, adaptive, cool_down):
    more = dict(combine=combine, adaptive=adaptive, cool_down=cool_down)
    log = replayed(trace, combination(*of, **more))
    assert [logged(log, i) for i in range(len(trace))] == oracle(find, trace, of, **more)


@settings(max_examples=30)
@given(traces)
def test_a_floor_on_the_match_is_a_longer_shortest_window(trace):
    floored = replayed(trace, combination(NGRAM, min_match_length=3))
    longer = replayed(trace, NGRAM | {"prompt_lookup_min": 3})
    for name in COLUMNS[:-1]:
        assert getattr(floored, name).tolist() == getattr(longer, name).tolist()
    assert replayed(trace, combination(NGRAM, min_match_length=9)).drafted.sum() == 0


def test_a_floor_on_the_score_takes_away_the_short_guesses():
    random = np.random.default_rng(0)
    whole = (random.integers(0, 3, 400) * (random.random(400) < 0.5)).tolist()
    trace = [(whole[:100], whole[100:], [])]
    found = [replayed(trace, combination(SUFFIX, min_score=floor)) for floor in (0, 1.0, 2.5, 9.0)]
    rounds = [int((log.drafted > 0).sum()) for log in found]
    assert rounds[0] > rounds[1] > rounds[2] > rounds[3] == 0
    # A draft's score is the sum of at most 1 per candidate, so no shorter one is left.
    assert found[1].drafted[found[1].drafted > 0].min() >= 1 and found[2].drafted[found[2].drafted > 0].min() >= 3


def test_lookup_first_else_the_draft_model():
    """At each step the n-gram's candidates where there are any, else the draft's k."""
    pytest.importorskip("torch")
    random = np.random.default_rng(3)
    piece = random.integers(300, 400, 30).tolist()
    draft = {"model": str(DRAFT), "num_speculative_tokens": 3}
    trace = [(piece + [7] + piece[:9], piece[9:25] + random.integers(0, 2048, 20).tolist(), [])]
    assert_equal(replayed(trace, combination(draft, {})), replayed(trace, draft))
    both = replayed(trace, combination(NGRAM, draft))
    alone = replayed(trace, NGRAM)
    assert (both.drafted > 0).all() and (alone.drafted == 0).any()  # a draft model always proposes
    assert both.accepted.sum() >= alone.accepted.sum() > 0
    longest = replayed(trace, combination(NGRAM, draft, combine="longest"))
    assert longest.drafted.min() >= 3


def test_it_is_called_hypothetical():
    requests = Requests.from_lists([[1, 2, 1]], [[2, 1]])
    kind, reason = label(requests, effective(combination(NGRAM, SUFFIX)), target=None, concurrency=8)
    assert kind == "hypothetical" and reason.startswith("no engine offers this combination") and "interleave" in reason


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"combine": "best", "of": [SUFFIX]}, "combine = 'best' must be"),
        ({"of": []}, "needs of = a list"),
        ({"of": SUFFIX}, "needs of = a list"),
        ({"of": [NGRAM | {"num_speculative_tokens": [2, 3]}]}, "a list is no grid inside a combination"),
        ({"of": [SUFFIX, {"method": "eagle", "model": "m"}]}, "takes ngram, suffix or draft_model, not 'eagle'"),
        ({"of": [SUFFIX, {"method": "ngram"}]}, "proposer 2 in `of`: needs num_speculative_tokens"),
        ({"of": [NGRAM], "min_score": 1.0}, "min_score = 1.0 is a floor for suffix"),
        ({"of": [{}], "min_match_length": 1}, "is a floor for ngram or suffix"),
        ({"of": [SUFFIX], "cool_down": -1}, "cool_down = -1 must be a whole number"),
        ({"of": [SUFFIX], "cool_down": True}, "cool_down = True must be"),
        ({"of": [SUFFIX], "adaptive": 1}, "adaptive = 1 must be true or false"),
        ({"of": [SUFFIX], "min_score": float("nan")}, "min_score = nan must be"),
        ({"of": [SUFFIX], "cooldown": 1}, "did you mean 'cool_down'"),
        ({"of": [SUFFIX], "num_speculative_tokens": 3}, "belongs to the proposers in `of`"),
        ("first", "must be a table"),
    ],
)
def test_what_cannot_be_combined_is_one_line(given, says):
    with pytest.raises(InputError) as error:
        parse({"proposer": [{"name": "mix", "hypothetical": given}]}, Path("replay.toml"))
    assert says in str(error.value) and "\n" not in str(error.value) and "'mix'" in str(error.value)


def test_a_list_is_a_grid_but_the_list_of_proposers():
    given = {"of": [NGRAM, SUFFIX], "combine": ["first", "longest"], "cool_down": [0, 2]}
    found = parse({"proposer": [{"name": "mix", "hypothetical": given}]}, Path("replay.toml")).proposer
    assert [(p.config["combine"], p.config["cool_down"]) for p in found] == [
        ("first", 0), ("first", 2), ("longest", 0), ("longest", 2),
    ]  # fmt: skip
    assert found[3].name == "mix · longest of ngram 2-4 k4 + suffix d8 k6, cool_down 2 (hypothetical)"
    assert all(len(p.config["of"]) == 2 for p in found) and len({p.key for p in found}) == 4


def test_only_recorded_and_only_by_its_own_key():
    mix = {"name": "mix", "hypothetical": {"of": [NGRAM, SUFFIX], "cool_down": 2}}
    (proposer,) = parse({"proposer": [mix]}, Path("replay.toml")).proposer
    assert (
        proposer.name == "mix (hypothetical)"
        and proposer.method == "hypothetical"
        and effective(proposer.config) == proposer.config
    )
    (unnamed,) = parse({"proposer": [{"hypothetical": mix["hypothetical"]}]}, Path("replay.toml")).proposer
    assert (
        unnamed.name == "first of ngram 2-4 k4 + suffix d8 k6, cool_down 2 (hypothetical)"
        and unnamed.key == proposer.key
    )
    (other,) = parse({"proposer": [{"hypothetical": {"of": [SUFFIX, NGRAM]}}]}, Path("replay.toml")).proposer
    assert other.key != proposer.key
    with pytest.raises(InputError, match="no engine offers a hypothetical combination"):
        parse({"engine": {"kind": "vllm"}, "proposer": [mix]}, Path("replay.toml"))
    with pytest.raises(InputError, match="write a combination as hypothetical ="):
        parse({"proposer": [{"config": combination(NGRAM)}]}, Path("replay.toml"))
    with pytest.raises(InputError, match="has config and hypothetical"):
        parse({"proposer": [mix | {"config": NGRAM}]}, Path("replay.toml"))
    with pytest.raises(InputError, match="takes n-gram lookup by the rule of"):
        replayed([([1], [2, 3], [])], combination(NGRAM), runner="v2")
