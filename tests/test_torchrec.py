"""Does our EmbeddingBagCollection agree with TorchRec's in names, results and gradients?"""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed")

from neocpu.core.errors import ConfigError  # noqa: E402
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
    expected = torchrec.EmbeddingBagCollection(tables=tables())
    actual = EmbeddingBagCollection(tables())
    actual.load_state_dict(expected.state_dict())
    expected_pooled = expected(batch())
    pooled = actual(batch())
    assert (
        isinstance(pooled, torchrec.KeyedTensor)
        and expected_pooled.keys() == pooled.keys()
        and expected_pooled.length_per_key() == pooled.length_per_key()
    )
    assert torch.allclose(
        expected_pooled.values(),
        pooled.values(),
        rtol=0,
        atol=8 * U * float(expected_pooled.values().detach().abs().max()),
    )
    grad = torch.randn(expected_pooled.values().shape)
    expected_pooled.values().backward(grad)
    pooled.values().backward(grad)
    for (name, expected_parameter), (our_name, parameter) in zip(
        expected.named_parameters(), actual.named_parameters()
    ):
        assert name == our_name
        assert torch.allclose(
            expected_parameter.grad,
            parameter.grad,
            rtol=0,
            atol=32 * U * float(expected_parameter.grad.abs().max()),
        )


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
