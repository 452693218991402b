"""How is a trained model served? Over HTTP: columns of a log as JSON in, predictions out.

    python examples/serve_http.py runs/a                 # a run's folder or a checkpoint
    python examples/serve_http.py model.safetensors      # of `neocpu export`, with torch
    python examples/serve_http.py model.onnx             # of `neocpu export`, with onnxruntime

    curl -d '{"I1": [1, null], …, "C1": ["68fd1e64", ""], …}' http://localhost:8000
    {"predictions": [0.1837, 0.2214]}

The last two need no neocpu but `raw_values.py` (and `torch_model.py`), which can be copied. Now
change the port with --port, or put a batching queue in front of `predict`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import _needs  # noqa: F401, what to install
import numpy as np

Predict = Callable[[Mapping[str, Sequence[Any]]], np.ndarray]
LARGEST = 64 << 20  # bytes of a request


def predictor(path: str) -> Predict:
    """What predicts from columns: torch, onnxruntime, or neocpu itself."""
    if path.endswith(".safetensors"):
        from neocpu.serve.exports.torch_model import TorchModel

        return TorchModel.load(path).predict
    if path.endswith(".onnx"):
        import onnxruntime

        from neocpu.serve.exports.raw_values import RawValues

        session = onnxruntime.InferenceSession(path)
        values = RawValues(json.loads(session.get_modelmeta().custom_metadata_map["neocpu"]))
        return lambda columns: session.run(None, values.onnx_inputs(columns))[0]
    import neocpu

    return neocpu.load(path).predict


def server(predict: Predict, port: int) -> HTTPServer:
    """A server on this machine; port 0: any free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                size = int(self.headers.get("Content-Length", 0))
                if size > LARGEST:
                    raise ValueError(f"a request of {size:,} bytes is too large")
                columns = json.loads(self.rfile.read(size))
                answer = {"predictions": predict(columns).tolist()}
                status = 200
            except Exception as error:  # noqa: BLE001, whoever sent it is told
                answer = {"error": f"{type(error).__name__}: {error}"}
                status = 400
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    served = server(predictor(str(arguments.model)), arguments.port)
    print(f"http://127.0.0.1:{served.server_port} serves {arguments.model}", file=sys.stderr)
    served.serve_forever()
