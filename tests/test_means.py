from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from statebackend import means


def others() -> SimpleNamespace:
    return SimpleNamespace(**{name: object() for name in means.NAMES})


def test_outside_of_a_simulation_each_name_is_pythons_own_function_or_class() -> None:
    assert means.monotonic is time.monotonic
    assert means.wall is time.time
    assert means.token_hex is secrets.token_hex
    assert means.Lock is threading.Lock
    assert means.socket is socket.socket
    assert means.exit_process is os._exit


def test_a_simulation_replaces_every_name_and_each_is_back_after_it_also_after_an_error() -> None:
    before = {name: getattr(means, name) for name in means.NAMES}
    simulated = others()
    seen = {}

    def fail() -> None:
        seen.update({name: getattr(means, name) for name in means.NAMES})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), means.replaced(simulated):
        fail()
    assert seen == vars(simulated)
    assert {name: getattr(means, name) for name in means.NAMES} == before


def test_a_simulation_that_lacks_a_name_is_refused_and_replaces_none() -> None:
    simulated = others()
    del simulated.token_hex
    with pytest.raises(AttributeError, match="token_hex"), means.replaced(simulated):
        pass
    assert means.monotonic is time.monotonic


def test_a_process_makes_once_what_it_has_once_and_a_forked_one_makes_its_own() -> None:
    made = means.OncePerProcess(object)
    mine = made()
    assert made() is mine
    child = os.fork()
    if child == 0:
        os._exit(0 if made() is not mine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made() is mine


def test_two_simulated_processes_have_what_a_process_has_once_each_for_itself() -> None:
    made, simulated = means.OncePerProcess(object), others()
    states = {"one": dict[object, object](), "two": dict[object, object]()}
    found: dict[str, object] = {}
    for name in ("one", "two", "one"):
        simulated.process_state = lambda name=name: states[name]
        with means.replaced(simulated):
            found.setdefault(name, made())
            assert made() is found[name]
    assert found["one"] is not found["two"]
