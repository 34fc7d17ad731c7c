from __future__ import annotations

import gc
import os
import threading

import pytest

from stagewire.collector import resting_collector


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_threads_that_overlap_put_it_back(order: tuple[int, int]) -> None:
    begun, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def work(number: int) -> None:
        with resting_collector():
            begun[number].set()
            leave[number].wait(10)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread, event in zip(threads, begun, strict=True):
        thread.start()
        assert event.wait(10)
    for number in order:
        assert not gc.isenabled()
        leave[number].set()
        threads[number].join(10)
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        with resting_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_is_not_left_without() -> None:
    with resting_collector():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitpid(child, 0)[1] == 0
