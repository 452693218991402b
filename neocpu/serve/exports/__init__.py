"""How does a model leave neocpu? As arrays, torch, ONNX, or one file that serves itself."""
