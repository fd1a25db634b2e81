"""A line that has nothing to do does nothing."""

import threading

import psutil
import pytest

from paceline import SMOLLM2, Serve

# Long enough that the clock of processor time, which ticks in hundredths of a second, tells 1 % apart.
INTERVAL_S = 4
# Other things that the machine does may disturb a measurement, but not all of them.
MEASUREMENTS = 8
LIMIT = 0.01


def used(process):
    """Seconds of processor time so far."""
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.parametrize("stages, threads", [(3, 1), (2, 2)])
def test_front_and_stages_use_less_than_one_percent_of_a_core_when_idle(stages, threads):
    with Serve(SMOLLM2, "--stages", stages, "--threads", threads) as serve:
        serve.wait_ready()
        serve.text("Once upon a time", 8)
        processes = [psutil.Process(pid) for pid in serve.stage_pids()]
        assert len(processes) == stages
        shares = []
        for _ in range(MEASUREMENTS):
            before = [used(process) for process in processes]
            # The interval that is measured, not a wait for something.
            threading.Event().wait(INTERVAL_S)
            shares.append([(used(process) - was) / INTERVAL_S for process, was in zip(processes, before)])
            if max(shares[-1]) < LIMIT:
                return
        raise AssertionError(f"shares of a core, front first: {shares}")
