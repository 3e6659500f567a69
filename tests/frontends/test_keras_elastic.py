"""frontends.keras.elastic and frontends.tensorflow.elastic: commit, restore, and going on without a lost rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.pool import Framework

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed: pip install 'ronde[keras]'", allow_module_level=True)

FIT = """
import os, sys
import numpy as np
import keras
import frontends.keras as hvd
hvd.init()
born = hvd.rank()
keras.utils.set_random_seed(born)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
sizes = []
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

class Dying(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if born == 1 and (state.epoch, batch) == (1, 2):
            os._exit(7)

x = np.random.default_rng(born).normal(size=(16, 4)).astype(np.float32)

@hvd.elastic.run
def train(state):
    callbacks = [
        Dying(),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    model.fit(x, x.sum(1), batch_size=4, epochs=3 - state.epoch, callbacks=callbacks, verbose=0)

train(state)
"""

TAPE = """
import os, sys
import tensorflow as tf
import frontends.tensorflow as hvd
hvd.init()
born = hvd.rank()
model = tf.Variable([[1.0 + born], [2.0]])
state = hvd.elastic.TensorFlowState([model], epoch=0)
sizes = []
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ model) ** 2)
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [model])
    model.assign_sub(0.1 * gradient)

@hvd.elastic.run
def train(state):
    while state.epoch < 3:
        if born == 1 and state.epoch == 1:
            os._exit(7)
        step(tf.fill((2, 2), 1.0 + born))
        state.epoch += 1
        state.commit()

train(state)
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variable = tf.compat.v1.get_variable("v", initializer=[1.0 + born])
    session.run(tf.compat.v1.global_variables_initializer())
    old = hvd.elastic.TensorFlowState(session=session)
    old.sync()
    session.run(variable.assign([5.0]))
    old.restore()
    assert session.run(variable) == [1.0]
"""

SAY = """
weights = [{read}(weight).tolist() for weight in {weights}]
same = len(set(map(str, hvd.allgather_object(weights)))) == 1
sys.stdout.write(f"rank {{born}} done at {{state.epoch}} of {{hvd.size()}}, resets {{sizes}}, same {{same}}" + chr(10))
hvd.shutdown()
"""


def script_of(kind: str) -> str:
    if kind == "tape":
        return TAPE + "import numpy as np" + SAY.format(weights="[model]", read="np.array")
    return FIT + SAY.format(weights="model.variables + model.optimizer.variables", read="keras.ops.convert_to_numpy")


@pytest.mark.parametrize("kind", ["tape", "jax", "tensorflow", "torch"])
def test_the_others_go_on_without_a_lost_rank(
    frameworks: Callable[[str], Framework], kind: str, tmp_path: Path
) -> None:
    needed = "tensorflow" if kind == "tape" else kind
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install 'ronde[{needed}]'")
    script = tmp_path / "script.py"
    script.write_text(script_of(kind))
    ranks = frameworks("tensorflow" if needed == "tensorflow" else f"keras-{kind}").fresh(3)
    said = ranks.run_script(script, lost={1: 7})
    for born in (0, 2):
        assert f"rank {born} done at 3 of 2, resets [2], same True" in said, said


IDENTITY = {
    "tape": """
import numpy as np
import tensorflow as tf
import frontends.tensorflow as hvd
hvd.init()
one, two, constant = tf.Variable([1.0 + hvd.rank()]), tf.Variable([3.0]), tf.constant([1.0])
state = hvd.elastic.TensorFlowState([one, two], alias=one, more=[two, (one,)], both=[constant, {"c": constant}])
state.sync()
state.commit()
for _ in range(2):
    one.assign([9.0])
    state.restore()
    assert state.alias is one and state.more[0] is two and state.more[1][0] is one
    assert state.both[0] is state.both[1]["c"]
    assert one.numpy().tolist() == [1.0]
""",
    "keras": """
import numpy as np
import keras
import frontends.keras as hvd
hvd.init()
tied = keras.layers.Dense(3, use_bias=False)
model = keras.Sequential([keras.Input((3,)), tied, keras.Sequential([keras.layers.Dense(3), tied])])
optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
model.compile(optimizer, "mse")
model.fit(np.ones((4, 3)), np.ones((4, 3)), verbose=0)
inner = model.layers[1]
state = hvd.elastic.KerasState(
    model, batch=0, kernel=tied.kernel, refers=[model, inner, inner.layers[1], optimizer],
    slots={"of": list(optimizer.variables)},
)
state.sync()
state.commit()
before = keras.ops.convert_to_numpy(tied.kernel).copy()
for _ in range(2):
    state.kernel.assign(state.kernel * 0)
    state.restore()
    assert state.kernel is tied.kernel is model.layers[0].kernel
    found = state.refers
    assert found[0] is model and found[1] is inner and found[2] is tied and found[3] is optimizer
    assert all(one is other for one, other in zip(state.slots["of"], optimizer.variables, strict=True))
    assert np.array_equal(keras.ops.convert_to_numpy(tied.kernel), before)
""",
}


@pytest.mark.parametrize("kind", ["tape", "jax", "tensorflow", "torch"])
def test_e1_state_identity(frameworks: Callable[[str], Framework], kind: str, tmp_path: Path) -> None:
    needed = "tensorflow" if kind == "tape" else kind
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install 'ronde[{needed}]'")
    script = tmp_path / "script.py"
    script.write_text(IDENTITY["tape" if kind == "tape" else "keras"] + "hvd.shutdown()")
    frameworks("tensorflow" if needed == "tensorflow" else f"keras-{kind}")(2).run_script(script)
