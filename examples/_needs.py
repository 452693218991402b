"""What must be installed for an example? Imported first, it says so where something is missing."""

import sys
from types import TracebackType

INSTALL = {
    "onnxruntime": "pip install onnxruntime",
    "safetensors": "pip install 'neocpu[export]'",
    "torch": "pip install 'neocpu[peers]'",
    "fbgemm_gpu": "pip install 'neocpu[peers]'",
    "torchrec": "pip install 'neocpu[peers]', then pip install --no-deps torchrec",
}


def say(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print how a missing module is installed; other errors as ever."""
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        remedy = INSTALL.get(name, "pip install neocpu, or pip install . in its source")
        print(f"{name} is not installed; {remedy}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = say
