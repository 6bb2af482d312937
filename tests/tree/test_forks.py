"""Everything that belongs to one process is made anew in a child of a fork, or named here."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.tree.files import ROOT
from tests.tree.imports import modules

Tree = Callable[[Mapping[str, str]], Path]

LOCKS: Final = ("Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier")
QUEUES: Final = ("Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "ThreadPoolExecutor")
MAKERS: Final = frozenset({*LOCKS, *QUEUES, "cached_property"})
HOOKS: Final = frozenset({"_start_afresh", "_leave_parent"})
NATIVE_ONCE: Final = re.compile(r"\b(PyOnceLock|GILOnceCell|OnceLock|LazyLock|pyo3::intern)\b")

# What `percola.platform.fork_safety` need not know, by class: who makes it anew, or why no child
# has a use for it.
BY_OTHERS: Final = {
    "lock_service/link.py:Link": "LockServiceClient makes others",
    "lock_service/link.py:Waker": "LockServiceClient makes another one",
    "lock_service/link.py:Session": "it goes with the lock service client's Link",
    "lock_service/link.py:Answers": "it goes with the lock service client's Link",
    "cli/metrics_port.py:_Server": "the thread that serves is not in a child",
    "rpc/client.py:Connection": "it goes with a client's _Line, Link or Waker, which are made anew",
    "rpc/greeter.py:Greeter": "the thread that accepts is not in a child, nor its sockets",
    "rpc/server.py:FrameServer": "the threads that serve are not in a child; it closes the sockets",
    "oracle/former.py:FormerClients": "the threads that serve are not in a child",
    "oracle/client.py:_Line": "NetworkOracle makes another one",
    "lmdb/background_sync.py:BackgroundSync": "Environment makes another one",
    "platform/file_locks.py:Wait": "Environment makes another one, or it is of one call only",
    "local/active_slots.py:ActiveSlots": "LocalCoordination makes another one",
    "oracle/ranges.py:Ranges": "the threads of an oracle's service are not in a child",
    "oracle/server.py:OracleServer": "the threads that serve are not in a child",
    "zookeeper/session.py:Session": "ZooKeeperCoordination makes another one",
    "percola/observers/draw_times.py:DrawTimes": "Worker makes another one",
    "percola/observers/pausing.py:PausedNames": "Worker makes another Runner, which has it",
    "percola/observers/runner.py:Runner": "Worker makes another one",
    "percola/observers/schedule.py:Schedule": "Worker makes another one",
    "percola/observers/clean_tables.py:CleanTables": "Schedule makes one",
    "fleet/driver.py:Fleet": "it belongs to Spark's driver, whose Java gateway no child may use",
    "devcluster/servers.py:Processes": "its servers are children of the process that started them",
    "histories/recorder.py:Recorder": "it records what one process does, in that process's name",
}


def unregistered(root: Path) -> list[str]:
    """Locks and the like that are kept, and that nothing makes anew in a child."""
    problems = []
    for file, tree in modules(root).items():
        if not file.startswith("src/percola/"):
            continue
        for line, owner, name, is_remade in kept(tree):
            known = any(file.endswith(one) and owner == its for one, its in by_others())
            if not is_remade and not known:
                problems.append(
                    f"{file}:{line}: {owner or 'the module'} keeps {name}, which a child of a fork "
                    "may inherit locked. Make it in a method _start_afresh that is registered with "
                    "percola.platform.fork_safety.at_fork, and put what it protects there as well"
                )
        if file != "src/percola/platform/fork_safety.py":
            problems += [
                f"{file}:{node.lineno}: only percola.platform.fork_safety registers hooks with os"
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
            ]
    return problems


def by_others() -> Iterator[tuple[str, str]]:
    """The end of a file's path and the class, of all exceptions."""
    for name in BY_OTHERS:
        file, _, owner = name.partition(":")
        yield "/" + file, owner


def kept(tree: ast.Module) -> Iterator[tuple[int, str, str, bool]]:
    """What a module keeps of `MAKERS`: line, class, name, and whether it is made anew."""
    globals_remade = {
        name
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name in HOOKS
        for node in ast.walk(function)
        if isinstance(node, ast.Global)
        for name in node.names
    }
    registers = {
        argument.id
        for node in tree.body
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and called(call) == "at_fork"
        for argument in call.args
        if isinstance(argument, ast.Name)
    }
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and made(node):
            for name in targets(node):
                yield node.lineno, "", name, bool(name in globals_remade and registers & HOOKS)
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            yield from kept_by(owner)


def kept_by(owner: ast.ClassDef) -> Iterator[tuple[int, str, str, bool]]:
    """The same for the fields of a class."""
    registered = any(
        isinstance(call, ast.Call)
        and called(call) == "at_fork"
        and any(isinstance(one, ast.Attribute) and one.attr in HOOKS for one in call.args)
        for call in ast.walk(owner)
    )
    for node in owner.body:
        if isinstance(node, ast.FunctionDef):
            if any(maker(one) for one in node.decorator_list):
                yield node.lineno, owner.name, node.name, False
            inherited = "super()._start_afresh()" in ast.unparse(node)
            for one in ast.walk(node):
                if isinstance(one, ast.Assign | ast.AnnAssign) and made(one):
                    for name in targets(one):
                        remade = node.name == "_start_afresh" and (registered or inherited)
                        if name.startswith("self."):
                            yield one.lineno, owner.name, name, remade
        elif made(node):
            yield node.lineno, owner.name, ", ".join(targets(node)), False


def targets(node: ast.AST) -> list[str]:
    """What an assignment assigns to, as source text."""
    if isinstance(node, ast.Assign):
        return [ast.unparse(one) for one in node.targets]
    return [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []


def made(node: ast.AST) -> bool:
    """Whether an assignment's value makes one of `MAKERS`, or names what will make a field."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return value is not None and any(
        (isinstance(one, ast.Call) and maker(one.func))
        or (isinstance(one, ast.keyword) and one.arg == "default_factory" and maker(one.value))
        for one in ast.walk(value)
    )


def maker(node: ast.AST) -> bool:
    """Whether an expression names one of `MAKERS`."""
    if isinstance(node, ast.Attribute):
        return node.attr in MAKERS
    # A store's Condition is another thing.
    return isinstance(node, ast.Name) and node.id in MAKERS - {"Condition"}


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_lock_that_is_kept_is_made_anew_in_the_child_of_a_fork() -> None:
    problems = unregistered(ROOT)
    assert not problems, "\n".join(problems)


def test_every_exception_is_needed() -> None:
    found = {
        (file, owner)
        for file, tree in modules(ROOT).items()
        for _, owner, _, is_remade in kept(tree)
        if not is_remade
    }
    for file, owner in by_others():
        assert any(one.endswith(file) and owner == its for one, its in found), (file, owner)


def test_native_code_makes_nothing_for_which_the_child_of_a_fork_would_wait() -> None:
    """What is made once, while the interpreter's lock may be given up, is not made in a child."""
    found = [
        f"{file.name}:{number}: {line.strip()}"
        for file in sorted((ROOT / "native" / "src").glob("*.rs"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if NATIVE_ONCE.search(line.partition("//")[0])
    ]
    assert not found, "use crate::python::Once: " + "; ".join(found)


@pytest.mark.parametrize(
    "program",
    [
        "import threading\nguard = threading.Lock()",
        "from threading import Lock\nguard = Lock()",
        "import threading\ndef _start_afresh():\n    global guard\nguard = threading.Lock()",
        "class A:\n    def __init__(self):\n        self._guard = threading.RLock()",
        "class A:\n    def __init__(self):\n        self._ends: Event = threading.Event()",
        "class A:\n    def __init__(self):\n        self._pool = ThreadPoolExecutor(3)",
        "class A:\n    def __init__(self):\n        self._guards = [threading.Lock() for _ in b]",
        "class A:\n    def __init__(self):\n        self._changed = Condition(threading.Lock())",
        "class A:\n    def _start_afresh(self):\n        self._guard = threading.Lock()",
        (
            "class A:\n    def late(self):\n        self._guard = Lock()\n"
            "    def __init__(self):\n        at_fork(self._start_afresh)"
        ),
        "class A:\n    guard = threading.Lock()",
        "class A:\n    changed: Condition = field(default_factory=threading.Condition)",
        "class A:\n    @functools.cached_property\n    def b(self): ...",
        "import os\nos.register_at_fork(after_in_child=print)",
    ],
)
def test_the_check_sees_what_a_child_could_inherit_locked(tree_of: Tree, program: str) -> None:
    assert len(unregistered(tree_of({"src/percola/a.py": program}))) == 1


@pytest.mark.parametrize(
    "program",
    [
        "def run():\n    ended = threading.Event()",
        (
            "guard = threading.Lock()\ndef _start_afresh():\n    global guard\n"
            "    guard = threading.Lock()\nforks.at_fork(_start_afresh)"
        ),
        (
            "class A:\n    def __init__(self):\n        forks.at_fork(self._start_afresh)\n"
            "    def _start_afresh(self):\n        self._guard = threading.Lock()"
        ),
        (
            "class A(B):\n    def _start_afresh(self):\n        super()._start_afresh()\n"
            "        self._guard = threading.Lock()"
        ),
    ],
)
def test_the_check_accepts_what_is_registered_or_not_kept(tree_of: Tree, program: str) -> None:
    assert unregistered(tree_of({"src/percola/a.py": program})) == []
