"""Does the collection with TorchRec's shape agree with TorchRec's own, in names, results and
gradients?
"""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed")

from neocpu.errors import ConfigError  # noqa: E402
from neocpu.peers.torchrec import EmbeddingBagCollection  # noqa: E402

U = 2.0**-24


def tables():
    config = torchrec.EmbeddingBagConfig
    kind = torchrec.PoolingType
    return [
        config(num_embeddings=9, embedding_dim=4, name="t1", feature_names=["b", "a"]),
        config(
            num_embeddings=5, embedding_dim=8, name="t2", feature_names=["a"], pooling=kind.MEAN
        ),
    ]


def batch(weighted=False):
    rng = np.random.default_rng(3)
    lengths = torch.from_numpy(rng.integers(0, 4, 3 * 6))
    total = int(lengths.sum())
    return torchrec.KeyedJaggedTensor(
        keys=["a", "unused", "b"],
        values=torch.from_numpy(rng.integers(0, 5, total)),
        lengths=lengths,
        weights=torch.from_numpy(rng.standard_normal(total).astype(np.float32))
        if weighted
        else None,
    )


def test_dense_results_names_and_gradients_are_torchrecs():
    theirs = torchrec.EmbeddingBagCollection(tables=tables())
    ours = EmbeddingBagCollection(tables())
    ours.load_state_dict(theirs.state_dict())
    a = theirs(batch())
    b = ours(batch())
    assert (
        isinstance(b, torchrec.KeyedTensor)
        and a.keys() == b.keys()
        and a.length_per_key() == b.length_per_key()
    )
    assert torch.allclose(
        a.values(), b.values(), rtol=0, atol=8 * U * float(a.values().detach().abs().max())
    )
    grad = torch.randn(a.values().shape)
    a.values().backward(grad)
    b.values().backward(grad)
    for (name, x), (other, y) in zip(theirs.named_parameters(), ours.named_parameters()):
        assert name == other
        assert torch.allclose(x.grad, y.grad, rtol=0, atol=32 * U * float(x.grad.abs().max()))


def test_fused_tables_train_as_dense_ones_with_sgd():
    dense = EmbeddingBagCollection(tables())
    fused = EmbeddingBagCollection(tables(), fused={"learning_rate": 0.5})
    fused.load_state_dict(dense.state_dict())
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        for collection in (dense, fused):
            collection(batch()).values().square().sum().backward()
        optimizer.step()
    for (_, x), (_, y) in zip(dense.named_parameters(), fused.named_parameters()):
        assert torch.allclose(x, y, rtol=0, atol=1e-5 * float(x.detach().abs().max()))


def test_weights_and_fused_states():
    ebc = EmbeddingBagCollection(
        tables(), is_weighted=True, fused={"optimizer": "exact_rowwise_adagrad"}
    )
    ebc(batch(weighted=True)).values().sum().backward()
    states = ebc.optimizer_states()
    assert (
        set(states) == {"t1", "t2"}
        and states["t1"]["sum"].shape == (9,)
        and states["t1"]["sum"].any()
    )


def test_errors_name_the_table():
    with pytest.raises(ConfigError, match="lacks feature 'b' of table 't1'"):
        EmbeddingBagCollection(tables())(
            torchrec.KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1]))
        )
    with pytest.raises(ConfigError, match="twice"):
        EmbeddingBagCollection(tables()[:1] * 2)
