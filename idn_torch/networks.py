"""Problems on real networks: a backbone of the topohub collection with GPUs at its nodes and detectors to place."""

import importlib.resources
import math
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple
