"""Does a thread that waits wake up, and leave the lock as it should be when Ctrl-C comes?"""

import signal
import threading
import time

import pytest

from tensorrepo.repo.threads import Waiting


def test_all_that_wait_are_woken() -> None:
    lock, waiting = threading.Lock(), Waiting()
    with lock:
        waits = [waiting.add() for _ in range(3)]
    threads = [threading.Thread(target=wait) for wait in waits]
    for thread in threads:
        thread.start()
    with lock:
        waiting.wake()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_wake_between_adding_and_waiting_is_not_lost() -> None:
    waiting = Waiting()
    wait = waiting.add()
    waiting.wake()
    assert wait(timeout=60)


def test_waking_is_for_those_that_were_added_before() -> None:
    waiting = Waiting()
    waiting.wake()
    wait = waiting.add()
    assert not wait(timeout=0.01)
    waiting.wake()
    assert wait(timeout=60)


def test_a_wake_that_was_interrupted_is_finished_by_the_next() -> None:
    waiting = Waiting()
    first, second = waiting.add(), waiting.add()
    waiting._gates[-1].release()  # as an interrupt leaves it: opened, and still there
    assert second(timeout=60)
    waiting.wake()
    assert first(timeout=60)
    assert not waiting._gates


def test_ctrl_c_while_the_lock_is_held_by_whoever_woke_leaves_it_to_him() -> None:
    lock, waiting = threading.Lock(), Waiting()
    main = threading.get_ident()
    failures: list[BaseException] = []

    def wake() -> None:
        try:
            with lock:
                waiting.wake()
                time.sleep(0.05)  # the main thread wants the lock now
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.05)
        except RuntimeError as error:  # somebody else has released it
            failures.append(error)

    waker = threading.Thread(target=wake)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with lock:
            wait = waiting.add()
        waker.start()
        wait()
        with pytest.raises(KeyboardInterrupt), lock:
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    waker.join(60)
    assert failures == []
    assert not lock.locked()
