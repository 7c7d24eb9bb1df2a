"""Coverage from a production server's own counters, before a single trace is recorded.

vLLM counts only steps that proposed something, so the number of decode steps S is not among its counters; it follows
from G generated tokens, Q requests that put out a first token, C accepted and R rounds: S = G − Q − C + overrun, with
overrun between 0 and k for each request that ended. Hence an interval, never a point.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from schemas.errors import InputError

_COUNTERS = {
    "generated": "vllm:generation_tokens_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "ended": "vllm:request_success_total",
    "rounds": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class ServerCounters:
    """Counters of one served model, summed over its engines; None where the server does not export it."""

    model: str
    generated: int | None = None
    first_tokens: int | None = None
    ended: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    positions: int = 0
    """k: how many draft positions the server counts."""

    @property
    def acceptance_rate(self) -> float | None:
        """C / D; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + C / R; None without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds and self.accepted is not None else None

    @property
    def steps(self) -> tuple[int, int] | None:
        """Interval that holds S, decode steps: [G − Q − C, G − Q − C + k × ended requests], at least R."""
        if self.generated is None or self.accepted is None or self.rounds is None or self.first_tokens is None:
            return None
        low = self.generated - self.first_tokens - self.accepted
        high = low + self.positions * (self.first_tokens if self.ended is None else self.ended)
        return max(low, self.rounds, 0), max(high, self.rounds, 0)

    @property
    def coverage(self) -> tuple[float, float] | None:
        """Interval that holds R / S; None when there were no decode steps."""
        if self.steps is None or self.rounds is None or self.steps[0] == 0:
            return None
        return self.rounds / self.steps[1], self.rounds / self.steps[0]

    @property
    def tokens_per_step(self) -> tuple[float, float] | None:
        """Interval that holds E / S, with E = G − Q; None when there were no decode steps."""
        if self.steps is None or self.steps[0] == 0 or self.generated is None or self.first_tokens is None:
            return None
        emitted = self.generated - self.first_tokens
        return emitted / self.steps[1], emitted / self.steps[0]

    @property
    def notes(self) -> list[str]:
        """What a reader must know before trusting the numbers."""
        if self.rounds is None:
            return ["this server exports no speculative-decoding counters: speculation is off"]
        out = []
        if self.rounds == 0:
            out.append("nothing was ever proposed: vLLM's own log prints no line at all in this case")
        elif self.positions and self.drafted == self.positions * self.rounds:
            out.append(
                f"every round proposed exactly {self.positions}: real for draft models, EAGLE, MTP; n-gram under the "
                "V2 runner (the default on a GPU) also always sends k, padded with filler, and then coverage, "
                "acceptance rate and mean acceptance length here are meaningless"
            )
        if self.first_tokens is None:
            out.append("no time_to_first_token count: the number of requests, and so coverage, is unknown")
        return out

    def as_dict(self) -> dict:
        """Counters and what follows from them, for JSON."""
        names = ("acceptance_rate", "mean_acceptance_length", "steps", "coverage", "tokens_per_step", "notes")
        return asdict(self) | {name: getattr(self, name) for name in names}


def parse(text: str, source: str = "metrics") -> list[ServerCounters]:
    """Counters per model from a server's metrics text.

    Raises:
        InputError: not Prometheus text, or no vLLM counters in it.
    """
    sums: dict[str, dict[str, float]] = {}
    positions: dict[str, set[str]] = {}
    names = {v: k for k, v in _COUNTERS.items()}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                model = sample.labels.get("model_name", "(no name)")
                if sample.name in names:
                    if not math.isfinite(sample.value) or sample.value < 0:
                        raise ValueError(f"{sample.name} = {sample.value}")
                    counts = sums.setdefault(model, {})
                    counts[names[sample.name]] = counts.get(names[sample.name], 0) + sample.value
                elif sample.name == _PER_POSITION:
                    positions.setdefault(model, set()).add(sample.labels.get("position", ""))
    except (ValueError, KeyError) as error:
        reason = str(error) or "a line of it is cut"  # the parser gives no reason for a bare "# TYPE"
        raise InputError(f"{source}: not Prometheus metrics text ({reason})") from None
    if not sums:
        raise InputError(f"{source}: no vLLM counters in it (expected names such as {_COUNTERS['generated']})")
    return [
        ServerCounters(model, **{k: int(v) for k, v in counts.items()}, positions=len(positions.get(model, ())))
        for model, counts in sorted(sums.items())
    ]


def read(source: str) -> list[ServerCounters]:
    """Counters from a file, or from a server's /metrics URL (http or https).

    Raises:
        InputError: it cannot be read, or holds no vLLM counters.
    """
    if source.startswith(("http://", "https://")):
        try:
            with urlopen(source, timeout=10) as response:
                return parse(response.read().decode("utf-8"), source)
        except (URLError, TimeoutError, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{source}: cannot be read ({getattr(error, 'reason', error)})") from None
    try:
        return parse(Path(source).read_text("utf-8"), source)
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.__class__.__name__
        raise InputError(f"{source}: cannot be read ({reason})") from None


def explain(m: ServerCounters) -> str:
    """The numbers of one model for people, each with its formula, then what was assumed."""

    def interval(pair: tuple[float, float] | None) -> str:
        return "n/a" if pair is None else f"{pair[0]:.3f} to {pair[1]:.3f}"

    def ratio(value: float | None) -> str:
        return "n/a" if value is None else f"{value:.3f}"

    lines = [
        m.model,
        f"  coverage                {interval(m.coverage):18} R / S   steps that proposed anything, of all decode",
        f"  acceptance rate         {ratio(m.acceptance_rate):18} C / D   of the candidates, over those steps only",
        f"  mean acceptance length  {ratio(m.mean_acceptance_length):18} 1 + C / R, over those steps only",
        f"  tokens per step         {interval(m.tokens_per_step):18} E / S   what a user gets, misses included",
    ]
    if m.steps is not None:
        lines.append(
            f"  assumed: V1 rules, S = G - Q - C + overrun with 0 to {m.positions} tokens of overrun per ended request;"
        )
        lines.append(f"           G = {m.generated:,}  Q = {m.first_tokens:,}  C = {m.accepted:,}  R = {m.rounds:,}")
    return "\n".join(lines + [f"  note: {note}" for note in m.notes])
