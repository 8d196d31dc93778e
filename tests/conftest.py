from pathlib import Path

import pytest
import torch

import idn_torch as idn


def pytest_configure() -> None:
    """Small tensors, and often a shared machine: waiting for a second thread costs more than it saves."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `cuda` need a real device."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def three_nodes() -> idn.Problem:
    """The example of the scenario format: edge, hub and cloud."""
    return idn.load_problem(Path(__file__).parent / "data" / "three_nodes.yaml")
