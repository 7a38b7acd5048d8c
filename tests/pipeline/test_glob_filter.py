"""A glob as a condition of Spark's is the glob of the broker."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from maxam.config import Limits
from maxam.errors import GlobError
from maxam.globs import Glob, compile_glob
from maxam.pipeline.spark.glob_filter import matches

PIECES = [
    "a",
    "b",
    "A",
    ".",
    "/",
    "*",
    "**",
    "?",
    "é",
    "😀",
    "-",
    "^",
    "&&",
    "$",
    "(",
    "+",
    "#",
    "[ab]",
    "[!a]",
    "[a-c]",
    "[.-a]",
    "[]b]",
    "[^&]",
    "[!-~]",
    "[é😀]",
    "[\\]",
]
CHARACTERS = "abA./é😀-^&$(+#\\~]\n"


def compiled(texts: list[str]) -> list[Glob]:
    """Compile those that the broker takes."""
    found = []
    for text in texts:
        try:
            found.append(compile_glob(text, Limits()))
        except GlobError:
            continue
    return found


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=2, max_size=8).map("".join), min_size=20, max_size=40),
    st.lists(
        st.text(CHARACTERS, min_size=1, max_size=8).map(lambda text: text.replace("a", "a/", 1)),
        min_size=20,
        max_size=40,
    ),
)
def test_spark_matches_as_the_broker(spark: SparkSession, texts: list[str], destinations: list[str]) -> None:
    """Spark finds exactly the destinations that the broker's own matching finds, whatever glob and text are."""
    globs = compiled([*texts, *[f"a{text}" for text in texts], "X/EGM.*.EGMStatus", "**"])
    everything = [*destinations, "X/EGM.Q.1.EGMStatus", "X/EGM.EGMStatus", "aX/EGM.Q.EGMStatus\n"]
    frame = spark.createDataFrame([(text,) for text in everything], "destination string")
    (row,) = frame.selectExpr("collect_list(destination) AS listed").collect()
    assert sorted(row.listed) == sorted(everything)
    columns = [matches([glob]).alias(str(number)) for number, glob in enumerate(globs)]
    for row in frame.select("destination", *columns).collect():
        wanted = {glob.text for glob in globs if glob.matches(row.destination)}
        assert {glob.text for number, glob in enumerate(globs) if row[str(number)]} == wanted, row.destination
