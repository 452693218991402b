"""Does torch, given the same weights and batches, arrive where we arrive after three steps?

torch differentiates by itself, sums in its own order, and its optimizers are its own, so what
agrees is the mathematics; the bits are the business of other tests. Only row-wise AdaGrad, which
torch lacks, is written out here. Rows that a batch does not look up keep weights and state, as in
FBGEMM: torch's Adam would move them by their momentum.

How far apart may two correct programs be? With u = 2^-24: a weight is rounded in each of the three
steps, and each step moves it by an error of lr * slope * 10 * u * G. Some 100 roundings lie between
a weight and its gradient (24 samples, three layers of at most 33 inputs, the loss); they point here
and there, so they add up to some sqrt(100) of them. G is the largest gradient of the tensor; slope,
how strongly the optimizer's step answers to a gradient: 1 for SGD, 1 / sqrt(initial accumulator)
for AdaGrad, 1 / eps for Adam. What was learnt is hundreds to many thousands of times that.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from neocpu.core.jagged import KJT
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.specs.specs import bags
from neocpu.train.config import config
from neocpu.train.state.initial import initial_rows
from neocpu.train.step.world import build

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

B = 24
DENSE = 5
STEPS = 3
N = 10
U = 2.0**-24
MODELS = {
    "dot": 'embedding_dim = 8\nbottom = [12, 8]\ntop = [10, 1]\ninteraction = "dot"',
    "dot-diagonal": (
        'embedding_dim = 8\nbottom = [8]\ntop = [6, 4, 1]\ninteraction = "dot"\ndiagonal = true'
    ),
    "cat": 'embedding_dim = 8\nbottom = [12, 5]\ntop = [10, 1]\ninteraction = "cat"',
}
TABLES = """
[tables.one]
rows = 40
[tables.mean]
rows = 7
pooling = "mean"
[tables.heavy]
rows = 30
weighted = true
[tables.heavy-mean]
rows = 30
pooling = "mean"
weighted = true
features = ["heavy", "mean"]
"""
# sparse rule: dense rule, learning rate, slope, other keys of both
RULES = {
    "exact_sgd": ("sgd", 0.5, 1.0, ""),
    "exact_adagrad": ("adagrad", 0.05, 10.0, "initial_accumulator_value = 0.01"),
    "exact_rowwise_adagrad": ("adagrad", 0.05, 10.0, "initial_accumulator_value = 0.01"),
    "adam": ("adam", 0.01, 100.0, "eps = 0.01\nbeta1 = 0.8\nbeta2 = 0.95"),
}


@dataclass(frozen=True)
class Batch:
    """One rank's share of a batch: everything."""

    dense: np.ndarray
    sparse: KJT
    labels: np.ndarray
    samples: int = B


def settings(model, loss, rule):
    dense, rate, _, extra = RULES[rule]
    text = f'[model]\n{MODELS[model]}\nloss = "{loss}"\n{TABLES}'
    for part, name in (("sparse", rule), ("dense", dense)):
        text += f'[optimizer.{part}]\nname = "{name}"\nlearning_rate = {rate}\n{extra}\n'
    if model == "cat":
        text = text.replace("[tables.mean]", "[tables.mean]\ndim = 3")
    return config.loads(text)


def batches(tables, loss):
    """Bags of 0 to 4 rows, many of them twice; each feature's lookups fit every table it feeds."""
    random = np.random.default_rng(7)
    for _ in range(STEPS):
        lengths = random.integers(0, 5, (len(bags(tables)), B)).astype(np.int32)
        rows = [tables[bag.table].rows for bag in bags(tables)]
        weighted = [tables[bag.table].weighted for bag in bags(tables)]
        values = [random.integers(0, high, n) for high, n in zip(rows, lengths.sum(axis=1))]
        weights = [
            random.uniform(0.5, 2, v.size) if w else np.ones(v.size)
            for v, w in zip(values, weighted)
        ]
        labels = random.integers(0, 2, B) if loss == "bce" else random.standard_normal(B)
        yield Batch(
            random.standard_normal((B, DENSE)).astype(np.float32),
            KJT(
                tuple(bag.key for bag in bags(tables)),
                lengths,
                np.concatenate(values),
                np.concatenate(weights).astype(np.float32),
            ),
            labels.astype(np.float32),
        )


class Peer:
    """The same model in torch."""

    def __init__(self, options, parameters):
        self.options = options
        self.tables = options.tables
        self.dense = {
            name: torch.nn.Parameter(torch.tensor(value)) for name, value in parameters.items()
        }
        sparse = options.optimizer.sparse
        seed = options.training.seed
        start = [
            initial_rows(table, sparse, seed, np.arange(table.rows))["weight"]
            for table in self.tables
        ]
        self.rows = [torch.nn.Parameter(torch.tensor(value)) for value in start]
        self.touched = [np.zeros(table.rows, bool) for table in self.tables]
        self.steepest = {}
        self.sums = [
            torch.full((table.rows,), sparse.initial_accumulator_value) for table in self.tables
        ]
        self.rowwise = sparse.name == "exact_rowwise_adagrad"
        self.optimizers = [self._optimizer(options.optimizer.dense, list(self.dense.values()))]
        if not self.rowwise:
            self.optimizers.append(self._optimizer(sparse, self.rows))

    def _optimizer(self, record, parameters):
        if record.name == "adam":
            return torch.optim.Adam(
                parameters, record.learning_rate, (record.beta1, record.beta2), record.eps
            )
        if record.name.endswith("adagrad"):
            start = record.initial_accumulator_value
            return torch.optim.Adagrad(
                parameters, record.learning_rate, initial_accumulator_value=start, eps=record.eps
            )
        return torch.optim.SGD(parameters, record.learning_rate)

    def _mlp(self, name, x, last_relu):
        layers = len([key for key in self.dense if key.startswith(name)]) // 2
        for i in range(layers):
            x = torch.nn.functional.linear(
                x, self.dense[f"{name}.{i}.weight"], self.dense[f"{name}.{i}.bias"]
            )
            if last_relu or i < layers - 1:
                x = torch.relu(x)
        return x

    def _pool(self, batch):
        kjt = batch.sparse
        for f, bag in enumerate(bags(self.tables)):
            spec = self.tables[bag.table]
            first = kjt.offsets[f * B]
            last = kjt.offsets[f * B + B]
            self.seen[bag.table][kjt.values[first:last]] = True
            lengths = torch.tensor(kjt.lengths[f])
            pooled = torch.nn.functional.embedding_bag(
                torch.tensor(kjt.values[first:last]),
                self.rows[bag.table],
                torch.tensor(kjt.offsets[f * B : f * B + B] - first),
                mode="mean" if spec.pooling == "mean" and not spec.weighted else "sum",
                per_sample_weights=torch.tensor(kjt.weights[first:last]) if spec.weighted else None,
            )
            if spec.pooling == "mean" and spec.weighted:
                pooled = pooled / lengths.clamp(min=1)[:, None]
            yield pooled

    def losses(self, batch):
        """Loss of each sample."""
        self.seen = [np.zeros(table.rows, bool) for table in self.tables]
        parts = [self._mlp("bottom", torch.tensor(batch.dense), True), *self._pool(batch)]
        if self.options.model.interaction == "cat":
            z = torch.cat(parts, dim=1)
        else:
            stack = torch.stack(parts, dim=1)
            i, j = torch.tril_indices(
                len(parts), len(parts), 0 if self.options.model.diagonal else -1
            )
            z = torch.cat([parts[0], torch.bmm(stack, stack.transpose(1, 2))[:, i, j]], dim=1)
        logits = self._mlp("top", z, False)[:, 0]
        labels = torch.tensor(batch.labels)
        if self.options.model.loss == "mse":
            return (logits - labels) ** 2
        return torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels, reduction="none"
        )

    def step(self, batch):
        """Train on one batch; losses of its samples."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for rows in self.rows:
            rows.grad = None
        losses = self.losses(batch)
        losses.mean().backward()
        for name, parameter in [*self.dense.items(), *enumerate(self.rows)]:
            self.steepest[name] = max(
                self.steepest.get(name, 0.0), float(parameter.grad.abs().max())
            )
        before = [self._copies(t) for t in range(len(self.rows))]
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for t, rows in enumerate(self.rows):
                if self.rowwise:
                    self.sums[t] += (rows.grad**2).mean(dim=1)
                    record = self.options.optimizer.sparse
                    rows -= (record.learning_rate / (self.sums[t].sqrt() + record.eps))[
                        :, None
                    ] * rows.grad
                for name, value in self._tensors(t).items():
                    if name in before[t]:
                        value[~self.seen[t]] = before[t][name][~self.seen[t]]
                    else:  # state that torch made in this step
                        value[~self.seen[t]] = 0
                self.touched[t] |= self.seen[t]
        return losses.detach().numpy()

    def _tensors(self, t):
        """Weights and state of table t that have rows."""
        state = {} if self.rowwise else self.optimizers[1].state[self.rows[t]]
        return {
            "weight": self.rows[t].data,
            **{name: value for name, value in state.items() if value.ndim == 2},
        }

    def _copies(self, t):
        return {name: value.clone() for name, value in self._tensors(t).items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("loss", ["bce", "mse"])
@pytest.mark.parametrize("model", MODELS)
def test_three_steps_agree(model, loss, rule):
    options = settings(model, loss, rule)
    world = build(
        options,
        SingleComm(),
        place(options.tables, ["table_wise"] * len(options.tables), 1, 1),
        DENSE,
    )
    peer = Peer(options, world.model.parameters)
    before = {name: value.copy() for name, value in world.model.parameters.items()}
    before |= {t: rows.detach().numpy().copy() for t, rows in enumerate(peer.rows)}
    for step, batch in enumerate(batches(options.tables, loss), 1):
        ours = world.step(batch, step).loss
        np.testing.assert_allclose(
            ours, peer.step(batch), rtol=0, atol=N * U * max(1.0, ours.max())
        )

    _, rate, slope, _ = RULES[rule]
    pairs = [(name, value, peer.dense[name]) for name, value in world.model.parameters.items()]
    for i, shard in enumerate(world.plan.local(0)):
        touched = world.embedding.tbe.touched(i).astype(bool)
        assert touched.tolist() == peer.touched[shard.table].tolist()
        ours = np.where(
            touched[:, None], world.embedding.tbe.state(i)["weight"], before[shard.table]
        )
        pairs.append((shard.table, ours, peer.rows[shard.table]))
    assert len(pairs) == len(before)
    for name, ours, theirs in pairs:
        tolerance = STEPS * U * (np.abs(ours).max() + rate * slope * N * peer.steepest[name])
        assert np.abs(ours - before[name]).max() > 200 * tolerance, (
            f"{name}: hardly moved, so nothing is shown"
        )
        np.testing.assert_allclose(
            ours, theirs.detach().numpy(), rtol=0, atol=tolerance, err_msg=str(name)
        )
