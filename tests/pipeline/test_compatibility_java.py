"""Compatibility against the Java `SchemaCompatibility` in Spark's Avro jar.

docs/integrate/schema-compatibility.md, "Where checkers disagree", explains where we decide otherwise, and why.
"""

import json
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from maxam.avro.compatibility import check
from maxam.avro.resolution import LOGICAL_TYPE_MISMATCH, NOT_TEXT
from tests.support.avro_schemas import minors, parsed, schemas

OURS_ALONE = {NOT_TEXT, LOGICAL_TYPE_MISMATCH}
"""Changes that only we refuse."""


def test_java_agrees(spark: SparkSession) -> None:
    """Java calls a minor compatible exactly when we do, except for bytes read as text and logical types."""
    jvm: Any = spark._jvm
    checker = jvm.org.apache.avro.SchemaCompatibility
    counts = {True: 0, False: 0}

    def java(reader: Any, writer: Any) -> bool:
        both = [jvm.org.apache.avro.Schema.Parser().parse(json.dumps(document)) for document in (reader, writer)]
        return str(checker.checkReaderWriterCompatibility(*both).getType()) == "COMPATIBLE"

    @settings(
        max_examples=400,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.generate],
    )
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        writer = data.draw(schemas())
        reader = data.draw(minors(writer))
        found = check(parsed(reader), parsed(writer))
        compatible = all(incompatibility.kind in OURS_ALONE for incompatibility in found)
        assert java(reader, writer) == compatible, [str(incompatibility) for incompatibility in found]
        counts[compatible] += 1

    compare()
    assert min(counts.values()) > 50
