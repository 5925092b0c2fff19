"""What every test starts from: a quiet, offline, single-threaded process, a tiny random model and its tokenizer."""

import copy
import os


# Before torch and transformers are imported: with two threads on busy cores the same work takes ten times longer.
os.environ.update(
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    WANDB_MODE="offline",
    TOKENIZERS_PARALLELISM="false",
    TRL_EXPERIMENTAL_SILENCE="1",
)

import pytest  # noqa: E402
import torch  # noqa: E402
from accelerate.logging import MultiProcessAdapter  # noqa: E402


torch.set_num_threads(1)

from helpers import build_model, build_tokenizer  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded():
    """Tests do not depend on their order."""
    torch.manual_seed(0)
    MultiProcessAdapter.warning_once.cache_clear()


@pytest.fixture(scope="session")
def _tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def _model(_tokenizer, tmp_path_factory):
    model = build_model(_tokenizer)
    folder = tmp_path_factory.mktemp("tiny-random")
    # On disk too: TRL reads the reference model from where the model came from.
    model.save_pretrained(folder)
    _tokenizer.save_pretrained(folder)
    model.config._name_or_path = str(folder)
    return model


@pytest.fixture
def tokenizer(_tokenizer):
    """Byte-level BPE tokenizer with a ChatML template; a test may change its template."""
    return copy.deepcopy(_tokenizer)


@pytest.fixture
def model(_model):
    """Tiny random Llama; a test may train it."""
    return copy.deepcopy(_model).eval()
