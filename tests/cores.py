"""Which tests `deploy/test-cores` runs over one core only: the interpreted one, of the tree, or the compiled one, of a wheel.

Tests that call the core's functions run over both. A test that starts a gateway runs over the compiled core, as users have it. A test
that runs no compiled code, or hardly any, runs over the tree. Where there is one core only it has all tests.
"""

import os
from typing import Final, Literal

# Files, folders, and single tests by their ids; the longest one that fits counts.
ONLY: Final[dict[str, Literal["interpreted", "compiled"]]] = {
    "tests/alerts/": "interpreted",  # Prometheus and its rules
    "tests/console/": "interpreted",
    "tests/console/test_console_topics.py": "compiled",  # topics under load
    "tests/deployment/": "interpreted",
    "tests/deployment/test_units.py": "compiled",  # a gateway without the right to write machine code
    "tests/docs/": "interpreted",
    "tests/examples/": "interpreted",
    "tests/faults/": "compiled",
    "tests/faults/test_enrolment_kill.py": "interpreted",  # files of certificates
    "tests/interop/": "compiled",
    "tests/interop/test_bench_brokers.py": "interpreted",  # other brokers
    "tests/interop/test_confluent_client.py": "interpreted",  # the admin API
    "tests/interop/test_schemas_guide.py": "interpreted",
    "tests/pipeline/": "interpreted",
    # These read and write journals.
    "tests/pipeline/test_cluster.py": "compiled",
    "tests/pipeline/test_cluster.py::test_workers_with_a_python_of_their_own_are_sent_maxam_alone": "interpreted",
    "tests/pipeline/test_generator.py": "compiled",
    "tests/pipeline/test_history.py": "compiled",
    "tests/pipeline/test_reading.py": "compiled",
    "tests/pipeline/test_stream.py": "compiled",
    "tests/properties/test_delivery.py": "compiled",  # all short histories
    "tests/prose/": "interpreted",
    "tests/soak/": "compiled",
    "tests/streams/": "compiled",
    "tests/streams/test_admin_cli.py": "interpreted",
    "tests/streams/test_admin_routes.py": "interpreted",
    "tests/streams/test_enrolment.py": "interpreted",
    "tests/streams/test_journal_admin.py": "interpreted",
    "tests/unit/test_admin_": "interpreted",
    "tests/unit/test_authority.py": "interpreted",
    "tests/unit/test_bench_": "interpreted",
    "tests/unit/test_browsers.py": "interpreted",
    "tests/unit/test_doc_links.py": "interpreted",  # paths of the tree
    "tests/unit/test_exit_codes.py": "interpreted",
    "tests/unit/test_extras.py": "interpreted",
    "tests/unit/test_history_table.py": "interpreted",
    "tests/unit/test_pipeline_resolution.py": "interpreted",
    "tests/unit/test_registry_api.py": "interpreted",
}


def is_left_to_the_other(nodeid: str, core: str) -> bool:
    """Return True if both cores are tested now and a test of that id runs over the other one only."""
    if "BOTH_CORES" not in os.environ:
        return False
    fitting = max((name for name in ONLY if nodeid.startswith(name)), key=len, default="")
    return ONLY.get(fitting, core) != core
