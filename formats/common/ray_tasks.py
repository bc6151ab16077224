"""Ray as an executor: functions called by the workers of a cluster, results in order.

Ray is an extra (``ray``), and is imported when somebody asks for it. A task whose worker died is
run again by Ray, so what tasks do is the same when it is done twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from tensorrepo.formats.common.tensors import import_library
from tensorrepo.repo.errors import InvalidInputError, StorageError, WorkerLostError

T = TypeVar("T")
R = TypeVar("R")
RETRIES: Final = 8  # of a task whose workers die one after the other


def ray_library() -> Any:
    """The package ray. Raises UnsupportedError where it is not installed."""
    return import_library("ray", "Ray is not installed: `pip install 'tensorrepo[ray]'`")


def connected_ray(address: str | None = None) -> Any:
    """The package ray, connected to a cluster.

    Args:
        address: address of a cluster, ``HOST:PORT``, ``ray://HOST:PORT`` or "auto"; None: the one
            that this process is connected to, the one that RAY_ADDRESS names, or a new one of this
            machine's cores.

    Raises:
        StorageError: no cluster answers there.
        UnsupportedError: Ray is not installed.
    """
    ray = ray_library()
    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise StorageError(
            f"no cluster of Ray at {address or 'this machine'}: {error}. Begin one with `ray start "
            "--head`, or give the address of one."
        ) from error
    return ray


def cluster_cpus(ray: Any) -> int:
    """Number of CPUs that the cluster has now."""
    return int(ray.cluster_resources().get("CPU", 0))


def cluster_text(ray: Any) -> str:
    """What the cluster has, for people."""
    free = int(ray.available_resources().get("CPU", 0))
    return f"the cluster has {cluster_cpus(ray)} CPUs, {free} of them free"


def remote_call(call: Callable[[T], R]) -> tuple[Callable[[T], R], int]:
    """A function that lets some worker call `call`, and waits for what it returns.

    Returns:
        The function, which several threads may call at once, and the number of CPUs of the cluster.

    Raises:
        InvalidInputError: `call` cannot be passed to another process.
    """
    ray = connected_ray()
    task = ray.remote(_called).options(max_retries=RETRIES, name="tensorrepo-call")
    passed = _put(ray, call)

    def there(argument: T) -> R:
        result: R = _got(ray, task.remote(passed, argument))
        return result

    return there, cluster_cpus(ray)


def ordered_calls(items: Iterable[T], call: Callable[[T], R]) -> Generator[R]:
    """What `call` returns for each item, in their order, made by workers of a cluster.

    Two calls for each CPU are begun and not taken at a time.

    Args:
        items: arguments.
        call: function that another process can be passed.

    Raises:
        Error: what `call` raised.
        WorkerLostError: workers died of one item again and again.
    """
    ray = connected_ray()
    task = ray.remote(_called).options(
        max_retries=RETRIES, scheduling_strategy="SPREAD", name="tensorrepo-call"
    )
    passed = _put(ray, call)
    most = max(1, 2 * cluster_cpus(ray))
    pending: deque[Any] = deque()
    try:
        for item in items:
            pending.append(task.remote(passed, item))
            if len(pending) >= most:
                yield _got(ray, pending.popleft())
        while pending:
            yield _got(ray, pending.popleft())
    finally:
        for each in pending:
            with suppress(ray.exceptions.RayError, ValueError):  # it has ended
                ray.cancel(each, force=True)


def task_failed(error: Any) -> Exception:
    """What a task raised, as it raised it where that can be told.

    `error` is a RayTaskError, whose text has the traceback of the worker.
    """
    cause = error.cause
    if isinstance(cause, ModuleNotFoundError | AttributeError) and "unpickl" in str(error).lower():
        return InvalidInputError(
            f"a worker of the cluster did not find what it was passed: {cause}. The modules of a "
            "function must be installed on all machines, or be in the working_dir of Ray's "
            "runtime_env."
        )
    if isinstance(cause, Exception) and not isinstance(cause, StopIteration):
        cause.add_note(f"On a worker of the cluster:\n{error}")
        return cause
    return RuntimeError(f"a worker of the cluster failed: {error}")


def died_of(error: Exception) -> str:
    """Why a worker is gone, in a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"a worker of the cluster died: {lines[0]}"


def _called(call: Callable[[Any], Any], argument: Any) -> Any:
    return call(argument)


def _put(ray: Any, call: Callable[..., Any]) -> Any:
    try:
        return ray.put(call)
    except TypeError as error:  # what Ray raises where pickle fails
        raise InvalidInputError(
            f"executor='ray' could not pass the work to the cluster: {error}. Let functions hold "
            "no open files, locks or connections."
        ) from error


def _got(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise task_failed(error) from error
    except ray.exceptions.RayError as error:
        raise WorkerLostError(
            f"{died_of(error)} It was tried {RETRIES + 1} times. Too little memory kills workers "
            "as well: give smaller pieces of work."
        ) from error
