"""Handwritten digits in a dataframe of Spark's: an estimator trains on ranks in Spark's tasks, and predicts.

python examples/spark_estimator_digits.py --workers 2    # two workers of Spark on this machine
python examples/spark_estimator_digits.py --master spark://HOST:7077 --store hdfs://HOST/jobs
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import torch

from ronde.spark.store import Store
from ronde.spark.torch import TorchEstimator


def main() -> None:
    """Train on 1500 digits, and report the accuracy of the predictions for the others."""
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import array_max, array_position, col
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--master", help="by default, two workers of Spark on this machine")
    parser.add_argument("--store", help="folder that all workers reach; by default one of this machine")
    options = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers' Python is this one
    if options.master is None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    cores = (options.workers + 1) // 2
    builder = SparkSession.builder.master(options.master or f"local-cluster[2,{cores},1024]")
    with tempfile.TemporaryDirectory() as folder, builder.getOrCreate() as session:
        images, digits = load_digits(return_X_y=True)
        rows = [(Vectors.dense(image / 16), int(digit)) for image, digit in zip(images, digits, strict=True)]
        train = session.createDataFrame(rows[:1500], ["image", "digit"])
        test = session.createDataFrame(rows[1500:], ["image", "digit"])

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        estimator = TorchEstimator(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), 0.005),
            loss=torch.nn.functional.cross_entropy,
            metrics={"accuracy": lambda output, digit: (output.argmax(1) == digit).double().mean()},
            feature_cols=["image"],
            label_cols=["digit"],
            validation=0.1,
            batch_size=30,
            epochs=options.epochs,
            num_proc=options.workers,
            store=Store.create(options.store or folder),
        )
        transformer = estimator.fit(train)

        scores = vector_to_array(col("digit__output"))
        found = transformer.transform(test).withColumn(
            "prediction", (array_position(scores, array_max(scores)) - 1).cast("double")
        )
        judge = MulticlassClassificationEvaluator(labelCol="digit", metricName="accuracy")
        print(f"accuracy {judge.evaluate(found):.1%} on {found.count()} digits, trained on {options.workers} ranks")


if __name__ == "__main__":
    main()
