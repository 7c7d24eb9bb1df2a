"""Runs jobs on this machine: in this process, or in a few worker processes that may die without taking the rest along.

Each worker has a pipe of its own and one job at a time, so a worker that is killed costs exactly its job one retry.
Knows what a job is called, where it may run and whether it failed; nothing of replay.
"""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Thread
from typing import Any

from pipeline.commit import DiskFullError
from pipeline.units import Job, Progress
from schemas.errors import EnvironmentProblem, InputError, ReconciliationError

TRIES = 2
"""A job that fails this often is given up; the user's own errors and a missing engine are not tried again."""

_FATAL = (InputError, DiskFullError)
_FINAL = (EnvironmentProblem, ReconciliationError)

Work = Callable[[Job, Progress], Any]

log = logging.getLogger(__name__)


def run_jobs(
    jobs: Sequence[Job],
    work: Work,
    workers: int,
    *,
    devices: Sequence[str] = (),
    done: Callable[[Job, Any], None],
    failed: Callable[[Job, Exception], None],
    progress: Callable[[Job, int], None],
) -> None:
    """Do every job; what one of them comes to does not stop the others.

    Args:
        jobs: what to do, in order.
        work: importable function of (job, progress); runs in the workers.
        workers: processes; 1 = in this process.
        devices: one for each worker, which every job of it is told; empty = none is told any.
        done: told of each job that succeeded and what it returned.
        failed: told of each job that was given up, and why.
        progress: told how many requests of a job are done.

    Raises:
        InputError, DiskFullError: at once, workers ended: what is wrong is wrong for all.
    """
    if min(workers, len(jobs)) <= 1:
        _run_here([replace(job, device=devices[0] if devices else None) for job in jobs], work, done, failed, progress)
    else:
        places = list(devices or [None] * workers)[: len(jobs)]
        _run_pool(jobs, work, places, done, failed, progress)


def _run_here(jobs, work, done, failed, progress) -> None:
    for job in jobs:
        error = None
        for _ in range(TRIES):
            try:
                result = work(job, lambda n, job=job: progress(job, n))
            except _FATAL:
                raise
            except Exception as problem:
                error = problem
                _tell(job, problem)
                if isinstance(problem, _FINAL):
                    break
            else:
                error = None
                done(job, result)
                break
        if error is not None:
            failed(job, error)


class _Worker:
    """A process with a pipe, and the job it has in hand (an index into the jobs)."""

    def __init__(self, context: multiprocessing.context.SpawnContext, work: Work, device: str | None):
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()
        self.job: int | None = None

    def give(self, index: int, job: Job) -> None:
        self.job = index
        with suppress(BrokenPipeError):  # it died: the next look at its pipe says so
            self.pipe.send(replace(job, device=self.device))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _run_pool(jobs, work, free, done, failed, progress) -> None:
    context = multiprocessing.get_context("spawn")
    waiting = list(range(len(jobs)))[::-1]
    tries = [0] * len(jobs)
    crew: list[_Worker] = []

    def settle(index: int, error: Exception) -> None:
        tries[index] += 1
        if isinstance(error, _FATAL):
            raise error
        if isinstance(error, _FINAL) or tries[index] >= TRIES:
            failed(jobs[index], error)
        else:
            waiting.append(index)

    try:
        while waiting or any(worker.job is not None for worker in crew):
            while waiting and free:
                crew.append(_Worker(context, work, free.pop(0)))
            for worker in crew:
                if worker.job is None and waiting:
                    index = waiting.pop()
                    worker.give(index, jobs[index])
            ready = wait([worker.pipe for worker in crew if worker.job is not None])
            for worker in [worker for worker in crew if worker.pipe in ready]:
                assert worker.job is not None
                try:
                    kind, value = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    index, code = worker.job, worker.process.exitcode
                    crew.remove(worker)
                    worker.end()
                    free.append(worker.device)
                    error = RuntimeError(f"its worker process ended with exit code {code}")
                    _tell(jobs[index], error)
                    settle(index, error)
                    continue
                if kind == "progress":
                    progress(jobs[worker.job], value)
                    continue
                index, worker.job = worker.job, None
                if kind == "done":
                    done(jobs[index], value)
                else:
                    settle(index, value)
    finally:
        for worker in crew:
            worker.end()


def _serve(pipe: Connection, work: Work) -> None:
    """A worker's life: jobs in, progress and results out, until the parent is gone, however long a job takes."""
    Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it ends us
    with suppress(EOFError, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                answer = "done", work(job, lambda n: pipe.send(("progress", n)))
            except BrokenPipeError:
                return
            except Exception as error:
                _tell(job, error)
                answer = "failed", _portable(error)
            pipe.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # nobody is there to take the result; what is half written is swept up later


def _tell(job: Job, error: Exception) -> None:
    """A failure is never passed over in silence, even where the next try mends it; the traceback is for debugging."""
    if not isinstance(error, (*_FATAL, *_FINAL)):
        log.warning("unit %s failed (%s: %s)", job.unit.shard, type(error).__name__, error)
        log.debug("unit %s", job.unit.shard, exc_info=error)


def _portable(error: Exception) -> Exception:
    """The error if it can cross the pipe, else one that says the same."""
    if isinstance(error, (*_FATAL, *_FINAL)):
        return type(error)(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")
