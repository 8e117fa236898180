"""No backend gets out of a part of the contract."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import pytest

from stepkeep.testing import BackendContract, contract

MODULES = sorted(Path(__file__).parent.glob("test_*.py"))
SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"contract_meta_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contract_classes(module: ModuleType) -> Iterator[type]:
    for value in vars(module).values():
        if inspect.isclass(value) and issubclass(value, BackendContract) and value is not BackendContract:
            yield value


def contract_tests() -> set[str]:
    return {name for name in dir(BackendContract) if name.startswith("test_")}


def overridden(cls: type) -> set[str]:
    """Tests of the contract that the class, or a base of its own, defines anew, or switches off as a whole."""
    own = [base for base in cls.__mro__ if not base.__module__.startswith("stepkeep.testing")]
    defined = {name for base in own for name in vars(base)}
    return defined & (contract_tests() | {"__test__", "pytestmark"})


def skips(source: str) -> set[str]:
    """Ways of not running a test that the source mentions in code."""
    nodes = ast.walk(ast.parse(source))
    return SKIPS & {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_backend_runs_the_whole_contract(path: Path) -> None:
    """A subclass overrides no inherited test, and its module skips and expects the failure of none."""
    for cls in contract_classes(load(path)):
        assert overridden(cls) == set(), cls
        assert cls.__name__.startswith("Test"), "pytest would not collect it"
    assert skips(path.read_text()) == set()


def test_every_part_of_the_contract_is_gathered() -> None:
    """No thematic class is left out, and no two define a test of the same name."""
    modules = [
        importlib.import_module(f"{contract.__name__}.{m.name}") for m in iter_modules(contract.__path__)
    ]
    classes = {value for module in modules for value in vars(module).values() if inspect.isclass(value)}
    parts = [value for value in classes if value.__name__.endswith("Contract")]
    names = [name for part in parts for name in vars(part) if name.startswith("test_")]
    assert all(issubclass(BackendContract, part) for part in parts)
    assert sorted(names) == sorted(set(names))
    assert set(names) == contract_tests()


def test_every_test_of_the_contract_states_its_fact() -> None:
    """Each has a docstring."""
    assert [name for name in contract_tests() if not getattr(BackendContract, name).__doc__] == []


def test_the_meta_test_sees_an_override() -> None:
    """A subclass that replaces a test, or a helper of its own base that does, is found."""
    name = min(contract_tests())
    assert overridden(type("TestBad", (BackendContract,), {name: None})) == {name}
    mixin = type("Mixin", (), {name: None})
    assert overridden(type("TestBad", (mixin, BackendContract), {})) == {name}
    assert skips("import pytest\n@pytest.mark.skip\ndef test(): ...") == {"skip"}
