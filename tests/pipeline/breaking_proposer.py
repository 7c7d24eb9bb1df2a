"""A proposer for vLLM's custom_class that breaks down after some calls: how, by the engine's concurrency, says a file.

It proposes the last token once more.
"""

import json
import os
import signal
import time
from pathlib import Path

WHERE = "SPECREPLAY_TEST_BREAKS"
_FINE_FOR = 20
"""Calls; the warm-up takes fewer."""


class Breaking:
    def __init__(self, vllm_config):
        breaks = json.loads(Path(os.environ[WHERE]).read_text())
        self.how = breaks.get(str(vllm_config.scheduler_config.max_num_seqs), "")
        self.calls = 0

    def load_model(self, *args, **kwargs) -> None:
        pass

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        self.calls += 1
        if self.calls > _FINE_FOR:
            self.break_down()
        return [ids[-1:] for ids in sampled_token_ids]

    def break_down(self) -> None:
        if self.how == "hang":
            while True:
                time.sleep(60)
        if self.how == "raise":
            raise MemoryError("no memory is left on the device")
        if self.how == "exit":
            os._exit(7)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
