"""`counters`: intervals from a server's /metrics text, against numbers worked out by hand."""

import pytest

from pipeline.counters import parse, read
from schemas.errors import InputError

TEXT = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {g}
vllm:generation_tokens_total{{engine="1",model_name="m"}} 0.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {q}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {q}
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} 1.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {q}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} 0.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {r}
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {d}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {c}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
""" + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{{engine="0",model_name="m",position="{i}"}}}} 1.0\n'
    for i in range(5)
)


def test_the_published_measurement():
    # 52 requests, k = 5, G 6,529, C 3,685, R 1,349: coverage between 0.442 and 0.483; the step log said 0.466.
    (m,) = parse(TEXT.format(g=6529, q=52, r=1349, d=6000, c=3685))
    assert m.steps == (2792, 3052)
    assert [round(x, 3) for x in m.coverage] == [0.442, 0.483]
    assert m.coverage[0] < 0.466 < m.coverage[1]
    assert m.acceptance_rate == 3685 / 6000
    assert m.mean_acceptance_length == 1 + 3685 / 1349
    assert m.tokens_per_step == (6477 / 3052, 6477 / 2792)
    assert m.notes == []


def test_undefined_is_none():
    (m,) = parse(TEXT.format(g=0, q=0, r=0, d=0, c=0))
    assert (m.acceptance_rate, m.mean_acceptance_length, m.coverage, m.tokens_per_step) == (None,) * 4


def test_never_proposed_is_said():
    (m,) = parse(TEXT.format(g=1000, q=10, r=0, d=0, c=0))
    assert m.coverage == (0.0, 0.0)
    assert "nothing was ever proposed" in m.notes[0]


def test_always_k_warns_of_v2_ngram():
    (m,) = parse(TEXT.format(g=1000, q=10, r=300, d=1500, c=600))
    assert "V2 runner" in m.notes[0]


def test_speculation_off():
    (m,) = parse('vllm:generation_tokens_total{engine="0",model_name="m"} 7.0\n')
    assert m.coverage is None and "speculation is off" in m.notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no vLLM counters"),
        ("hello {", ""),
        ("# TYPE \n", "a line of it is cut"),
        ("python_gc_objects_collected_total 3.0\n", "no vLLM counters"),
        ("vllm:generation_tokens_total NaN\n", "vllm:generation_tokens_total = nan"),
    ],
)
def test_what_is_no_metrics_text(text, says, tmp_path):
    file = tmp_path / "metrics.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=rf"metrics\.txt: .*{says}"):
        read(str(file))


def test_missing_file_and_dead_server(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(str(tmp_path / "none.txt"))
    with pytest.raises(InputError, match="cannot be read"):
        read("http://127.0.0.1:9/metrics")
